"""The kubelets of all fake nodes, as one thread: pods run, end by a script, and go when deleted.

A test that sets pods by hand (pod_states.py) uses it too, for the one thing that only a kubelet
may do: let go of a pod that was deleted.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import urllib3

import pod_states
from cluster_access import Cluster, Json, Refused, Watch, path_of

RETRY_SECONDS = 0.2
WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a pod ends, and how long after its start."""

    code: int
    message: str = ""
    reason: str | None = None
    after_seconds: float = 0.0


Behaviour = Callable[[Json], Exit | None]
"""Asked when a pod starts to run; None: it runs until it is deleted or set by hand."""


def runs_on(pod: Json) -> Exit | None:
    """The behaviour of a pod that never ends by itself."""
    return None


def starts_all(pod: Json) -> bool:
    """Every bound pod is started."""
    return True


def starts_none(pod: Json) -> bool:
    """The test starts pods itself."""
    return False


class SimulatedKubelet:
    """Reacts to the pods of a namespace (None: of all); `stop` ends its threads."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str | None,
        behaviour: Behaviour = runs_on,
        starts: Callable[[Json], bool] = starts_all,
    ) -> None:
        self.behaviour, self._starts = behaviour, starts
        self.errors: list[Exception] = []
        self._cluster, self._namespace = cluster, namespace
        self._seen: set[tuple[str, str]] = set()  # (UID, deed): each deed once a pod
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._stopped = False
        self._watch: Watch | None = None
        self._threads = [threading.Thread(target=self._follow, daemon=True)]
        self._threads += [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; what was due later never happens."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._watch is not None:
            self._watch.stop()
        for thread in self._threads:
            thread.join(10)

    def _follow(self) -> None:
        """List, watch, and again whenever the watch ends or the API server is away."""
        path = path_of("pods", namespace=self._namespace)
        while not self._stopped:
            try:
                listed = self._cluster.access.call("GET", path)
                for pod in listed["items"]:
                    self._see(pod)
                self._watch = self._cluster.access.watch(
                    path, listed["metadata"]["resourceVersion"]
                )
                for event in self._watch:
                    if self._stopped or event["type"] == "ERROR":
                        break
                    if event["type"] != "DELETED":
                        self._see(event["object"])
            except (Refused, OSError, urllib3.exceptions.HTTPError, ValueError):
                with self._changed:
                    self._changed.wait(RETRY_SECONDS)

    def _see(self, pod: Json) -> None:
        meta, phase = pod["metadata"], pod["status"].get("phase")
        if pod_states.LOST in meta.get("annotations", {}):
            return
        if "deletionTimestamp" in meta:
            self._once(pod, "terminate", lambda: pod_states.terminate(self._cluster, pod))
        elif phase == "Pending" and pod["spec"].get("nodeName") and self._starts(pod):
            self._once(pod, "run", lambda: pod_states.run_pod(self._cluster, pod))
        elif phase == "Running":
            self._once(pod, "behave", lambda: self._behave(pod))

    def _behave(self, pod: Json) -> None:
        leaving = self.behaviour(pod)
        if leaving is None:
            return

        def leave() -> None:
            pod_states.finish(
                self._cluster, pod, leaving.code, message=leaving.message, reason=leaving.reason
            )

        self._once(pod, "exit", leave, after_seconds=leaving.after_seconds)

    def _once(
        self, pod: Json, name: str, deed: Callable[[], object], *, after_seconds: float = 0.0
    ) -> None:
        key = (pod["metadata"]["uid"], name)
        with self._changed:
            if key in self._seen or self._stopped:
                return
            self._seen.add(key)
            heapq.heappush(self._due, (time.monotonic() + after_seconds, next(self._order), deed))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and not self._ripe():
                    wait = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(wait)
                if self._stopped:
                    return
                _, order, deed = heapq.heappop(self._due)
            try:
                deed()
            except Refused as refused:
                if refused.status not in (404, 409):  # the pod is gone, or was set by the test
                    self.errors.append(refused)
            except (OSError, urllib3.exceptions.HTTPError):  # the API server is away: later
                with self._changed:
                    heapq.heappush(self._due, (time.monotonic() + RETRY_SECONDS, order, deed))

    def _ripe(self) -> bool:
        return bool(self._due) and self._due[0][0] <= time.monotonic()


@contextmanager
def simulated_kubelet(
    cluster: Cluster,
    *,
    namespace: str | None,
    behaviour: Behaviour = runs_on,
    starts: Callable[[Json], bool] = starts_all,
) -> Iterator[SimulatedKubelet]:
    """A kubelet for the time of a test; a deed that the API server refused fails the test."""
    kubelet = SimulatedKubelet(cluster, namespace=namespace, behaviour=behaviour, starts=starts)
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
    if kubelet.errors:
        raise kubelet.errors[0]
