"""Every status that the jobs of a namespace ever had, in order, and what must hold of the order."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import urllib3

from cluster_access import Cluster, Json, Refused, Watch, path_of

RETRY_SECONDS = 0.2


class StatusHistory:
    """Watches the QuantizationJobs of a namespace past every fault that tests inject."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._path = cluster, path_of("quantizationjobs", namespace=namespace)
        self._seen: dict[str, list[Json]] = {}
        self._watch: Watch | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._watch is not None:
            self._watch.stop()
        self._thread.join(10)

    def of(self, uid: str) -> list[Json]:
        """The statuses of one job, oldest first."""
        return list(self._seen.get(uid, []))

    def jobs(self) -> list[str]:
        """UIDs of all jobs that were seen."""
        return list(self._seen)

    def regressions(self) -> list[str]:
        """What went back that only goes forward, over all jobs."""
        return [
            f"{before.get('phase')} -> {after.get('phase')}: {what}"
            for statuses in self._seen.values()
            for before, after in itertools.pairwise(statuses)
            for what in went_back(before, after)
        ]

    def _follow(self) -> None:
        version = ""
        while not self._stopped.is_set():
            try:
                if not version:
                    listed = self._cluster.access.call("GET", self._path)
                    version = listed["metadata"]["resourceVersion"]
                    for found in listed["items"]:
                        self._see(found)
                self._watch = self._cluster.access.watch(self._path, version)
                for event in self._watch:
                    if event["type"] == "ERROR":
                        version = ""
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "DELETED":
                        self._see(event["object"])
            except (Refused, OSError, ValueError, urllib3.exceptions.HTTPError):
                self._stopped.wait(RETRY_SECONDS)

    def _see(self, job: Json) -> None:
        statuses = self._seen.setdefault(job["metadata"]["uid"], [])
        if job.get("status") and (not statuses or statuses[-1] != job["status"]):
            statuses.append(job["status"])


def went_back(before: Json, after: Json) -> list[str]:
    """Names of what is smaller, gone or undone in the later status."""
    found = []
    if after.get("attempt", 0) < before.get("attempt", 0):
        found.append("attempt")
    for cause in ("application", "disruption"):
        if after["restarts"][cause] < before["restarts"][cause]:
            found.append(f"restarts.{cause}")
    if before.get("startTime") and after.get("startTime") != before["startTime"]:
        found.append("startTime")
    if after["activeSeconds"] < before["activeSeconds"]:
        found.append("activeSeconds")
    for kind in ("Complete", "Failed"):
        if truth(before, kind) == "True" and truth(after, kind) != "True":
            found.append(kind)
    return found


def truth(status: Json, kind: str) -> str:
    """The status of a condition, "" where it is not there."""
    found = [item["status"] for item in status.get("conditions", []) if item["type"] == kind]
    return str(found[0]) if found else ""


@contextmanager
def status_history(cluster: Cluster, namespace: str) -> Iterator[StatusHistory]:
    """A history of all that happens in a namespace meanwhile."""
    history = StatusHistory(cluster, namespace)
    history.start()
    try:
        yield history
    finally:
        history.stop()
