"""Answers of the API server sorted by what to do (C15, C22), and what liveness covers."""

import json
from typing import Any

import pytest

from quantfleet_operator.answers import (
    AlreadyExists,
    NamespaceEnding,
    Refused,
    Stale,
    Unavailable,
    error_of,
)
from quantfleet_operator.health import Health
from quantfleet_operator.settings import settings_from

ENDING = {"details": {"causes": [{"reason": "NamespaceTerminating"}]}, "message": "ending"}
ANSWERS: list[tuple[str, int, Any, type[Exception]]] = [
    ("patch", 409, {"reason": "Conflict"}, Stale),
    ("patch", 404, {"reason": "NotFound"}, Stale),
    ("get", 404, {"reason": "NotFound"}, Stale),
    ("create", 409, {"reason": "AlreadyExists"}, AlreadyExists),
    ("create", 404, {"reason": "NotFound"}, NamespaceEnding),
    ("create", 403, ENDING, NamespaceEnding),
    ("create", 403, {"reason": "Forbidden"}, Refused),
    ("create", 422, {"reason": "Invalid"}, Refused),
    ("create", 400, {"reason": "BadRequest"}, Refused),
    ("patch", 429, {}, Unavailable),
    ("patch", 500, {}, Unavailable),
    ("get", 503, {}, Unavailable),
    ("get", 401, {}, Unavailable),
    ("get", 302, [], Refused),
]


@pytest.mark.parametrize(("verb", "status", "body", "error"), ANSWERS)
def test_an_answer_is_sorted(verb: str, status: int, body: Any, error: type[Exception]) -> None:
    assert type(error_of(verb, status, json.dumps(body).encode(), {})) is error


def test_an_answer_that_is_no_json_is_quoted() -> None:
    error = error_of("get", 502, b"<html>bad gateway", {})
    assert "bad gateway" in str(error)


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("", None), ("Wed, 21 Oct", None)])
def test_retry_after_is_read(text: str, seconds: float | None) -> None:
    error = error_of("patch", 429, b"{}", {"Retry-After": text})
    assert isinstance(error, Unavailable)
    assert error.retry_after == seconds


def test_an_operator_is_ready_once_crd_and_cluster_were_read() -> None:
    health = Health(clock=lambda: 0.0, resync_seconds=300)
    assert "CRD" in health.not_ready()
    health.definition = ""
    assert "listed" in health.not_ready()
    health.synchronized = 1.0
    assert health.not_ready() == ""


def test_a_watch_that_misses_changes_twice_in_a_row_is_not_alive() -> None:
    health = Health(clock=lambda: 0.0, resync_seconds=300)
    health.resynced("Pod", 3)
    assert health.not_alive() == ""
    health.resynced("Pod", 1)
    assert "Pod" in health.not_alive()
    health.event("Pod")
    assert health.not_alive() == ""


def test_a_queue_or_a_look_that_is_stuck_is_not_alive() -> None:
    health = Health(clock=lambda: 0.0, resync_seconds=300, oldest_wait=lambda: 200.0)
    assert "waits" in health.not_alive()
    health = Health(clock=lambda: 0.0, resync_seconds=300, longest_look=lambda: 400.0)
    assert "look" in health.not_alive()


def test_settings_come_from_the_environment() -> None:
    settings = settings_from(
        {
            "QUANTFLEET_WATCH_NAMESPACES": "b, a,,a",
            "QUANTFLEET_WORKER_IMAGE": " registry.invalid/w:1 ",
            "QUANTFLEET_METRICS_PORT": "8080",
        }
    )
    assert settings.namespaces == ("a", "b")
    assert settings.worker_image == "registry.invalid/w:1"
    assert (settings.metrics_port, settings.liveness_port) == (8080, 0)


def test_a_setting_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="QUANTFLEET_METRICS_PORT"):
        settings_from({"QUANTFLEET_METRICS_PORT": "http"})
