"""What is registered with kopf (C15): event handlers and nothing that marks objects or blocks."""

import asyncio
import itertools
from typing import Any

import kopf
import pytest

from quantfleet_operator.handlers import RESOURCES, configure, registry_of
from quantfleet_operator.health import Health
from quantfleet_operator.store import Key, Store
from quantfleet_operator.work_queue import WorkQueue
from reconcile_builders import NAME, NAMESPACE, UID, spec

BANNED = ["_spawning", "_changing", "_webhooks", "_indexing"]


def registry(store: Store, queue: WorkQueue[Key], health: Health) -> kopf.OperatorRegistry:
    return registry_of(store, queue, health, lambda: None)


@pytest.fixture
def parts() -> tuple[Store, WorkQueue[Key], Health]:
    return Store(), WorkQueue(), Health(clock=lambda: 0.0, resync_seconds=300)


@pytest.mark.parametrize("kind", BANNED)
def test_no_handler_that_would_write_to_objects(kind: str, parts: Any) -> None:
    assert list(getattr(registry(*parts), kind).get_all_handlers()) == []


def test_every_kind_is_watched_by_one_event_handler(parts: Any) -> None:
    handlers = list(registry(*parts)._watching.get_all_handlers())
    assert len(handlers) == len(RESOURCES)
    assert not [handler for handler in handlers if getattr(handler, "requires_finalizer", False)]


def test_event_handlers_return_nothing_and_fill_store_and_queue(parts: Any) -> None:
    """kopf would write what they return into the status."""
    store, queue, health = parts
    handlers = registry(*parts)._watching.get_all_handlers()
    (handler,) = [one for one in handlers if one.id == "quantizationjob-event"]
    meta = {"namespace": NAMESPACE, "name": NAME, "uid": UID, "resourceVersion": "1"}
    body = {"metadata": meta, "spec": spec()}

    async def story() -> None:
        for kind in ("ADDED", "MODIFIED", None):
            assert await handler.fn(type=kind, body=body) is None
        assert await asyncio.wait_for(queue.get(), 5) == (NAMESPACE, NAME)
        assert store.view((NAMESPACE, NAME)) is not None
        assert await handler.fn(type="DELETED", body=body) is None
        assert store.view((NAMESPACE, NAME)) is None

    asyncio.run(story())
    assert health.events.keys() == {"QuantizationJob"}


def test_children_are_filtered_by_the_server() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    selected = {
        (selector.group, selector.any_name or selector.plural)
        for selector in settings.watching.label_selectors
    }
    assert {name for _, name in selected} == {"jobs", "pods", "services"}
    assert settings.scanning.disabled
    assert not settings.posting.enabled


def test_a_watch_never_gives_up_and_never_waits_long() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    backoffs = settings.networking.error_backoffs
    assert not isinstance(backoffs, int | float)
    for _ in range(2):  # each request starts anew
        waits = list(itertools.islice(backoffs, 1000))
        assert len(waits) == 1000
        assert max(waits) <= 10
