"""Carries out what reconcile decides: workers that take keys from the queue, one job at a time.

The order is the point (rule C6): first the API server is asked whether it would take the next Job,
then the status is written, then the deeds follow, one by one. Whoever dies at any place in between
leaves a state from which the next look goes on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from quantfleet_api.status import JobStatus
from quantfleet_operator.answers import (
    AlreadyExists,
    ApiError,
    NamespaceEnding,
    Refused,
    Stale,
    Unavailable,
)
from quantfleet_operator.cluster import Cluster, ensure, owner_of
from quantfleet_operator.conditions import is_terminal
from quantfleet_operator.decision import (
    Action,
    CreateJob,
    Decision,
    Delete,
    Ensure,
    Manifest,
    SuspendJob,
)
from quantfleet_operator.diagnosis import Diagnoses
from quantfleet_operator.holds import refused
from quantfleet_operator.manifests.identity import CONTENT_ANNOTATION
from quantfleet_operator.metrics import RECONCILE_SECONDS, RECONCILES, RESTARTS
from quantfleet_operator.observed import Hold, JobView, Observed, Pod
from quantfleet_operator.reconcile import reconcile
from quantfleet_operator.settings import Settings
from quantfleet_operator.store import Key, Store
from quantfleet_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

UNAVAILABLE_SECONDS = 8.0
"""Longest back-off while the API server is away: jobs go on soon after it is back."""


@dataclass(slots=True, kw_only=True)
class Controller:
    """What the workers share; lives in one event loop."""

    cluster: Cluster
    store: Store
    queue: WorkQueue[Key]
    settings: Settings
    clock: Callable[[], datetime]
    refusals: dict[Key, Hold]
    """Why a child of a job could not be created the last time."""
    diagnoses: Diagnoses
    untrusting: set[str] = field(default_factory=set)
    """UIDs of jobs whose ConfigMap may have another authority of the status server."""

    def trust(self, authority: str) -> None:
        """From now on the workers of all jobs trust this authority of the status server."""
        self.settings = replace(self.settings, progress_ca=authority)
        for key in self.store.keys():
            view = self.store.view(key)
            if view is not None and not is_terminal(view.status):
                self.untrusting.add(view.uid)
                self.queue.add(key)

    async def work(self) -> None:
        """A worker: looks at job after job, forever."""
        while True:
            key = await self.queue.get()
            try:
                with RECONCILE_SECONDS.time():
                    await self.look(key)
            except Unavailable as error:
                RECONCILES.labels(outcome="unavailable").inc()
                wait = self.queue.failed(
                    key, retry_after=error.retry_after, longest=UNAVAILABLE_SECONDS
                )
                logger.warning("again in wait=%.1f job=%s/%s: %s", wait, *key, error)
            except Stale:
                RECONCILES.labels(outcome="stale").inc()
                self.queue.failed(key)
            except ApiError as error:
                RECONCILES.labels(outcome="refused").inc()
                wait = self.queue.failed(key)
                logger.error("refused, again in wait=%.1f job=%s/%s: %s", wait, *key, error)
            except Exception:  # a bug must not end the worker: it is logged, counted, tried again
                RECONCILES.labels(outcome="error").inc()
                self.queue.failed(key)
                logger.exception("error job=%s/%s", *key)
            else:
                RECONCILES.labels(outcome="done").inc()
                self.queue.done(key)

    async def look(self, key: Key) -> None:
        """One look at a job: observe, decide, write, do, and when to look again."""
        view = self.store.view(key)
        if view is None:
            self._forget(key)
            return
        observed = await self._observe(key, view)
        settings = self.settings
        decision = reconcile(view, observed, self.clock(), settings)
        if decision.probe is not None:
            decision = await self._probed(view, observed, decision, decision.probe)
        if decision.status is not None:
            view = await self._write(key, view, decision.status)
            if decision.restarted is not None:
                RESTARTS.labels(cause=decision.restarted.value).inc()
            for event in decision.events:
                await self.cluster.tell(view, event)
        for action in decision.actions:
            if not await self._do(key, view, action):
                break
        else:
            self.refusals.pop(key, None)
            if settings is self.settings:  # else what to trust changed meanwhile
                self.untrusting.discard(view.uid)
        if decision.requeue_after is None:
            self.queue.unschedule(key)
        else:
            self.queue.schedule(key, decision.requeue_after)

    async def _observe(self, key: Key, view: JobView) -> Observed:
        children = self.store.children(view.uid)
        warnings, claims = await self.diagnoses.of(key, view, children, self.clock())
        # The last wait: watches go on meanwhile, and what they bring was not confirmed.
        await self._confirm(key, view)
        children = self.store.children(view.uid)
        return Observed(
            jobs=tuple(children.jobs.values()),
            pods=tuple(children.pods.values()),
            service_exists=bool(children.services),
            refusal=self.refusals.get(key),
            warnings=warnings,
            claims=claims,
            trust_stale=view.uid in self.untrusting,
        )

    async def _confirm(self, key: Key, view: JobView) -> None:
        """Asks for what decides over an attempt where what was seen of it may be old.

        Watches of several kinds may run apart: a Job that was not seen at all; a pod that is being
        deleted, since a Job says that it failed before it stops the survivors; and the last words
        of the pods of a Job that is over, which no later look would take back.
        """
        reference = view.status.job_ref
        if reference is None or is_terminal(view.status):
            return
        confirmed: dict[str, Pod] | None = None
        while self._doubtful(view, reference.uid):
            pods = dict(self.store.children(view.uid).pods)
            if pods == confirmed:  # else a deletion came while the Job was asked for
                break
            found = await self.cluster.find("batch/v1", "Job", view.namespace, reference.name)
            if found is not None:
                self.store.put("Job", found)
            confirmed = pods
        job = self.store.children(view.uid).jobs.get(reference.uid)
        if job is not None and (job.failure is not None or job.success is not None):
            page = await self.cluster.list_all("v1", "Pod", view.namespace, job_uid=view.uid)
            for pod in page.items:
                self.store.put("Pod", pod)

    def _doubtful(self, view: JobView, job_uid: str) -> bool:
        """Whether the present attempt's Job may know more than its watch has brought."""
        children = self.store.children(view.uid)
        job = children.jobs.get(job_uid)
        if job is None:
            return True
        leaving = any(
            pod.attempt == view.status.attempt and (pod.gone or pod.deletion_time is not None)
            for pod in children.pods.values()
        )
        return leaving and job.failure is None and job.success is None

    async def _probed(
        self, view: JobView, observed: Observed, decision: Decision, probe: Manifest
    ) -> Decision:
        """The decision, unless the API server's word on the next Job changes it."""
        try:
            await self.cluster.create(probe, dry_run=True)
        except AlreadyExists:
            return decision
        except NamespaceEnding:
            observed = replace(observed, namespace_ending=True)
        except Refused as error:
            if error.status not in (400, 422):
                return decision  # a quota, say: the Job's own creation will tell
            observed = replace(observed, rejection=str(error))
        return reconcile(view, observed, self.clock(), self.settings)

    async def _write(self, key: Key, view: JobView, status: JobStatus) -> JobView:
        """Writes a status; where the job changed meanwhile, fetches it for the next look."""
        own = status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"progress"})
        try:
            raw = await self.cluster.apply_status(view, own)
        except Stale:
            await self._refresh(key, view)
            raise
        self.store.put("QuantizationJob", raw)
        logger.info("status job=%s/%s phase=%s attempt=%d", *key, status.phase, status.attempt)
        return self.store.view(key) or view

    async def _refresh(self, key: Key, view: JobView) -> None:
        found = await self.cluster.find("quantfleet.io/v1alpha1", "QuantizationJob", *key)
        if found is not None:
            self.store.put("QuantizationJob", found)
        else:
            self.store.lose(view.uid)

    async def _do(self, key: Key, view: JobView, action: Action) -> bool:
        """Carries out one deed; False where those after it must wait."""
        try:
            match action:
                case Ensure(manifest=manifest):
                    await ensure(self.cluster, manifest, view.uid, CONTENT_ANNOTATION)
                case CreateJob(manifest=manifest):
                    await self._create_job(key, view, manifest)
                case SuspendJob():
                    raw = await self.cluster.suspend(view.namespace, action)
                    self.store.put("Job", raw)
                    self.queue.add(key)
                case Delete():
                    await self.cluster.delete(view.namespace, action, view.uid)
        except NamespaceEnding:
            return False
        except AlreadyExists as error:
            self._refuse(key, Hold(reason="NameConflict", message=str(error)))
            return False
        except Refused as error:
            self._refuse(key, refused(str(error)))
            return False
        return True

    async def _create_job(self, key: Key, view: JobView, manifest: Manifest) -> None:
        try:
            raw = await self.cluster.create(manifest)
        except AlreadyExists:
            name = manifest["metadata"]["name"]
            found = await self.cluster.find("batch/v1", "Job", view.namespace, name)
            if found is None or owner_of(found) != view.uid:
                raise
            raw = found
        self.store.put("Job", raw)
        logger.info("job created job=%s/%s name=%s", *key, raw["metadata"]["name"])
        self.queue.add(key)

    def _refuse(self, key: Key, hold: Hold) -> None:
        """Remembers why; said in the status at once, tried again later."""
        if self.refusals.get(key) != hold:
            self.refusals[key] = hold
            logger.warning("refused job=%s/%s reason=%s: %s", *key, hold.reason, hold.message)
            self.queue.add(key)

    def _forget(self, key: Key) -> None:
        self.queue.forget(key)
        self.refusals.pop(key, None)
        self.diagnoses.forget(key)
