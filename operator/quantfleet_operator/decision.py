"""What reconcile decides, as data: a status to write, then deeds in order, then events.

The controller carries it out in that order, so that intent is always written before the deed
(rule C6): whoever dies in between finds in the status what to do.
"""

from dataclasses import dataclass
from typing import Any, Literal

from quantfleet_api.status import Cause, JobStatus

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensure:
    """Make a child, or bring the one that is ours to what it should be."""

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateJob:
    """Create the Job of an attempt; one that exists and is ours is taken as it is."""

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendJob:
    """Set a Job's `spec.suspend`."""

    name: str
    uid: str
    suspend: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a child, its own children in the background; one that is gone is fine.

    With a `uid` only that very object; without, only one that has our job as its owner.
    """

    api_version: str
    kind: str
    name: str
    uid: str = ""


Action = Ensure | CreateJob | SuspendJob | Delete


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the story that `kubectl describe` tells."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
    action: str = "Reconcile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next; an empty one means that all is as it should be."""

    status: JobStatus | None = None
    """The operator's full own set of fields, or None where nothing changed."""
    probe: Manifest | None = None
    """A Job that the API server must take in a dry run before any of this is done: it refuses one
    that it would never take, and any in a namespace that is being deleted (rule C7)."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until the job must be looked at again, whatever happens."""
    restarted: Cause | None = None
    """The cause for which this decision starts a new attempt."""
