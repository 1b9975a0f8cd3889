"""What the watches brought: views of jobs and of their children, by the job's UID.

Filled by watches, by answers to our own writes (so that a look never misses what the look before
did), and by the resync, which also finds what a watch missed. Newer versions win. A pod that is
gone is remembered as long as its attempt may need it as evidence (rule C3).
"""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field, replace
from typing import Literal

from quantfleet_api.names import (
    ATTEMPT_LABEL,
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    attempt_of,
    child_name,
    job_name,
)
from quantfleet_api.status import Phase
from quantfleet_operator.conditions import is_terminal
from quantfleet_operator.observed import (
    ChildJob,
    JobView,
    Pod,
    Raw,
    parse_job,
    parse_pod,
    parse_quantization_job,
)

Key = tuple[str, str]
"""Namespace and name of a QuantizationJob."""
Kind = Literal["QuantizationJob", "Job", "Pod", "Service"]
KINDS: dict[Kind, str] = {
    "QuantizationJob": "quantfleet.io/v1alpha1",
    "Job": "batch/v1",
    "Pod": "v1",
    "Service": "v1",
}
_MOST_DELETED = 20_000


@dataclass(frozen=True, slots=True)
class Known:
    """An object that is there: which version of it, and whose it is."""

    kind: Kind
    version: int
    key: Key
    owner: str
    """UID of the QuantizationJob."""


@dataclass(slots=True)
class Children:
    """The children of one job, by their own UIDs."""

    jobs: dict[str, ChildJob] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    services: set[str] = field(default_factory=set)


class Store:
    """All that is known of the cluster; lives in one event loop."""

    def __init__(self) -> None:
        self._views: dict[Key, JobView] = {}
        self._children: defaultdict[str, Children] = defaultdict(Children)
        self._known: dict[str, Known] = {}  # by UID
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def keys(self) -> tuple[Key, ...]:
        """All jobs."""
        return tuple(self._views)

    def view(self, key: Key) -> JobView | None:
        """A job, if it is there."""
        return self._views.get(key)

    def phases(self) -> dict[str, int]:
        """How many jobs there are in each phase; one without a status is Pending."""
        counts = dict.fromkeys((phase.value for phase in Phase), 0)
        for view in tuple(self._views.values()):
            counts[(view.status.phase or Phase.PENDING).value] += 1
        return counts

    def children(self, uid: str) -> Children:
        """The children of a job, as they are known."""
        return self._children.get(uid) or Children()

    def put(self, kind: Kind, raw: Raw) -> Key | None:
        """Takes an object in, unless a newer version of it is there; returns the job's key."""
        meta, key = raw["metadata"], _key_of(kind, raw)
        uid, version = meta["uid"], int(meta["resourceVersion"])
        known = self._known.get(uid)
        if key is None or uid in self._deleted or (known is not None and known.version >= version):
            return key
        owner = uid if kind == "QuantizationJob" else meta["labels"][JOB_UID_LABEL]
        self._known[uid] = Known(kind, version, key, owner)
        match kind:
            case "QuantizationJob":
                self._put_view(key, raw)
            case "Job":
                self._children[owner].jobs[uid] = parse_job(raw)
            case "Pod":
                pods = self._children[owner].pods
                pods[uid] = _first_asked(parse_pod(raw), pods.get(uid))
            case "Service":
                self._children[owner].services.add(uid)
        return key

    def _put_view(self, key: Key, raw: Raw) -> None:
        old, new = self._views.get(key), parse_quantization_job(raw)
        if old is not None and old.uid != new.uid:
            self._drop_view(key, old.uid)
        self._views[key] = new
        self._forget_evidence(new)

    def remove(self, kind: Kind, raw: Raw) -> Key | None:
        """An object is gone; `raw` is what it was last."""
        key, meta = _key_of(kind, raw), raw["metadata"]
        if key is None:
            return None
        owner = meta["uid"] if kind == "QuantizationJob" else meta["labels"][JOB_UID_LABEL]
        children = self._children.get(owner)
        if kind == "Pod" and children is not None:
            uid = meta["uid"]
            children.pods[uid] = _first_asked(parse_pod(raw), children.pods.get(uid))
        self._gone(meta["uid"], Known(kind, int(meta["resourceVersion"]), key, owner))
        return key

    def lose(self, uid: str) -> None:
        """An object was asked for and is gone."""
        known = self._known.get(uid)
        if known is not None:
            self._gone(uid, known)

    def replace_all(
        self, kind: Kind, items: tuple[Raw, ...], version: str, namespace: str | None
    ) -> set[Key]:
        """Makes the store equal to a complete list of a namespace (None: of all).

        Returns the jobs that this changed. What is newer than the list stays.
        """
        before, listed = dict(self._known), {raw["metadata"]["uid"] for raw in items}
        changed: set[Key] = set()
        for raw in items:
            key = self.put(kind, raw)
            uid = raw["metadata"]["uid"]
            if key is not None and self._known.get(uid) != before.get(uid):
                changed.add(key)
        for uid, known in before.items():
            missing = known.kind == kind and uid not in listed and known.version <= int(version)
            if missing and namespace in (None, known.key[0]):
                self._gone(uid, known)
                changed.add(known.key)
        return changed

    def _gone(self, uid: str, known: Known) -> None:
        self._known.pop(uid, None)
        self._deleted[uid] = None  # a late answer must not bring it back
        while len(self._deleted) > _MOST_DELETED:
            self._deleted.popitem(last=False)
        if known.kind == "QuantizationJob":
            self._drop_view(known.key, uid)
            return
        children = self._children.get(known.owner)
        if children is None:
            return
        children.jobs.pop(uid, None)
        children.services.discard(uid)
        pod = children.pods.pop(uid, None)
        view = self._views.get(known.key)
        if pod is not None and view is not None and view.uid == known.owner:
            # A pod of a suspended Job was deleted on purpose: no evidence of anything.
            suspended = any(j.suspended for j in children.jobs.values() if j.attempt == pod.attempt)
            if not suspended and pod.attempt >= view.status.attempt:
                children.pods[uid] = replace(pod, gone=True)
        if not (children.jobs or children.pods or children.services):
            del self._children[known.owner]

    def _drop_view(self, key: Key, uid: str) -> None:
        if key in self._views and self._views[key].uid == uid:
            del self._views[key]
        children = self._children.pop(uid, None)
        if children is not None:
            for child in (*children.jobs, *children.pods, *children.services):
                self._known.pop(child, None)

    def _forget_evidence(self, view: JobView) -> None:
        """Drops pods that are gone and whose attempt is over."""
        children = self._children.get(view.uid)
        if children is None:
            return
        over = is_terminal(view.status)
        for uid, pod in tuple(children.pods.items()):
            if pod.gone and (over or pod.attempt < view.status.attempt):
                del children.pods[uid]


def _first_asked(new: Pod, old: Pod | None) -> Pod:
    """The pod with the earliest time at which its deletion was seen to be asked for."""
    if old is None or old.asked is None or (new.asked is not None and new.asked <= old.asked):
        return new
    return replace(new, asked=old.asked)


def _key_of(kind: Kind, raw: Raw) -> Key | None:
    """The job that an object belongs to, or None where it only looks like ours.

    Labels can be copied; the controller that made an object cannot be chosen so easily.
    """
    meta = raw["metadata"]
    namespace = meta["namespace"]
    if kind == "QuantizationJob":
        return namespace, meta["name"]
    labels = meta.get("labels") or {}
    name, uid = labels.get(JOB_NAME_LABEL), labels.get(JOB_UID_LABEL)
    owner = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), None)
    if not name or not uid or owner is None:
        return None
    if kind == "Pod":
        attempt = attempt_of(labels)
        made_by_ours = attempt is not None and owner["name"] == job_name(name, uid, attempt)
        return (namespace, name) if made_by_ours else None
    own_name = child_name(name, uid)
    if kind == "Job" and ATTEMPT_LABEL in labels:
        own_name = job_name(name, uid, attempt_of(labels) or 0)
    return (namespace, name) if owner["uid"] == uid and meta["name"] == own_name else None
