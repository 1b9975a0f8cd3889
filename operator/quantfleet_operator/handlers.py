"""What kopf supplies: watches. They fill the store and the queue, and decide nothing.

Only event handlers are registered. Handlers of creation, change and deletion, timers and daemons
would put annotations and a finalizer on jobs, and a job with a finalizer cannot be deleted while
the operator is down (rule C15). An event handler that fails is not tried again, so these do nothing
that can fail on one object and not on all; what a watch misses, the resync finds.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import kopf

from quantfleet_api.names import GROUP, PLURAL, SELECTOR, VERSION
from quantfleet_operator.health import Health
from quantfleet_operator.metrics import WATCH_EVENTS
from quantfleet_operator.store import Key, Kind, Store
from quantfleet_operator.work_queue import WorkQueue

RESOURCES: dict[Kind, tuple[str, str, str]] = {
    "QuantizationJob": (GROUP, VERSION, PLURAL),
    "Job": ("batch", "v1", "jobs"),
    "Pod": ("", "v1", "pods"),
    "Service": ("", "v1", "services"),
}
COALESCE_SECONDS = 0.05
"""Changes of a job's children within this time are looked at together."""


class Backoffs:
    """Waits between requests of a watch that fail, in seconds: without an end.

    kopf gives up with the last one, and the process with it; an API server that answers 503 for
    minutes is no reason to start anew.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1, 2, 3, 5), itertools.repeat(8))


def registry_of(
    store: Store, queue: WorkQueue[Key], health: Health, restarted: Callable[[], None]
) -> kopf.OperatorRegistry:
    """The handlers; `restarted` is called when a watch starts anew with a list."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for kind, (group, version, plural) in RESOURCES.items():
        _register(registry, kind, (group, version, plural), store, queue, health, restarted)
    return registry


def _register(
    registry: kopf.OperatorRegistry,
    kind: Kind,
    resource: tuple[str, str, str],
    store: Store,
    queue: WorkQueue[Key],
    health: Health,
    restarted: Callable[[], None],
) -> None:
    async def event(type: str | None, body: kopf.Body, **_: Any) -> None:
        raw = dict(body)
        key = store.remove(kind, raw) if type == "DELETED" else store.put(kind, raw)
        WATCH_EVENTS.labels(kind=kind).inc()
        if type is None:
            if health.synchronized is not None:
                restarted()
        else:
            health.event(kind)
        if key is not None:
            queue.soon(key, COALESCE_SECONDS)

    kopf.on.event(*resource, registry=registry, id=f"{kind.lower()}-event")(event)


def _login(**context: Any) -> Any:
    """Credentials as the client library finds them, asked for again when the server says no."""
    return kopf.login_via_client(**context)


def configure(settings: kopf.OperatorSettings) -> None:
    """Settings of kopf: selectors on the server's side, bounded waits, no traces on objects."""
    for kind, resource in RESOURCES.items():
        if kind != "QuantizationJob":
            settings.watching.label_selectors[resource] = SELECTOR
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70  # bookmarks come every minute
    settings.watching.reconnect_backoff = 0.5
    settings.watching.chunk_size = 500
    settings.networking.error_backoffs = Backoffs()
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 1.0  # memory of objects at rest
    settings.scanning.disabled = True  # no rights on CRDs and namespaces are needed
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.process.ultimate_exiting_timeout = 10
