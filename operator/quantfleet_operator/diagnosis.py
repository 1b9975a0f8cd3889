"""Asks why workers do not start, where pods themselves do not say: warning events and claims.

Called by the controller for jobs that wait for their workers for more than some seconds, at most
every half minute for each; what is found is kept until then.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from quantfleet_api.claims import claims_of
from quantfleet_operator.cluster import Cluster
from quantfleet_operator.holds import DIAGNOSE_EVERY_SECONDS, needs_diagnosis
from quantfleet_operator.observed import Claim, Hold, JobView, Pod, Raw
from quantfleet_operator.store import Children, Key

MOST_PODS_ASKED = 2
"""Pods of a gang tend to be held by the same thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found, when, for which attempt."""

    time: datetime
    attempt: int
    warnings: tuple[Hold, ...]
    claims: tuple[Claim, ...]


class Diagnoses:
    """The latest answers, by job; lives in one event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: dict[Key, Found] = {}

    async def of(
        self, key: Key, view: JobView, children: Children, now: datetime
    ) -> tuple[tuple[Hold, ...], tuple[Claim, ...]]:
        """Warnings about the attempt's Job and waiting pods, and the claims that the job names."""
        if not needs_diagnosis(view, now):
            self.forget(key)
            return (), ()
        found = self._found.get(key)
        fresh = timedelta(seconds=DIAGNOSE_EVERY_SECONDS)
        if found is None or found.attempt != view.status.attempt or now - found.time >= fresh:
            found = await self._ask(view, children, now)
            self._found[key] = found
        return found.warnings, found.claims

    def forget(self, key: Key) -> None:
        """Drops what was found."""
        self._found.pop(key, None)

    async def _ask(self, view: JobView, children: Children, now: datetime) -> Found:
        attempt = view.status.attempt
        pods = [p for p in children.pods.values() if p.attempt == attempt and not p.terminal]
        held = [pod for pod in pods if not pod.ready]
        reference = view.status.job_ref
        uids = [pod.uid for pod in held if _silent(pod)][:MOST_PODS_ASKED]
        if reference is not None and not held:
            uids.append(reference.uid)
        events: list[Raw] = []
        for uid in uids:
            events += await self._cluster.warnings(view.namespace, uid)
        claims = [await self._claim(view, name) for name in claims_of(view.spec)] if held else []
        warnings = tuple(_hold(event) for event in events)
        return Found(time=now, attempt=attempt, warnings=warnings, claims=tuple(claims))

    async def _claim(self, view: JobView, name: str) -> Claim:
        raw = await self._cluster.find("v1", "PersistentVolumeClaim", view.namespace, name)
        if raw is None:
            return Claim(name=name, exists=False)
        phase = (raw.get("status") or {}).get("phase") or ""
        modes = tuple(raw["spec"].get("accessModes") or ())
        return Claim(name=name, exists=True, phase=phase, access_modes=modes)


def _silent(pod: Pod) -> bool:
    """Whether the pod's own status does not say what holds it."""
    return pod.hold is None or pod.hold.reason in ("ContainerCreating", "PodInitializing")


def _hold(event: Raw) -> Hold:
    return Hold(reason=event.get("reason") or "", message=event.get("message") or "")
