"""Ranks that look for each other: names that are not known yet, listeners that come late."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from quantfleet_api.errors import Interrupted, TryAgain
from quantfleet_worker import meeting
from quantfleet_worker.exchange import SharedStore, open_store
from quantfleet_worker.meeting import missing_pods, wait_for_everyone, wait_for_listener
from quantfleet_worker.messages import Rendezvous


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "LOOK_SECONDS", 0.01)


def never() -> None:
    """Nobody asks to stop."""


def test_a_name_that_is_not_known_yet_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    resolve, asked = socket.getaddrinfo, []

    def late(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        if len(asked) < 4:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    wait_for_listener("gang-a1-0.gang.ns.svc", port, seconds=60, should_stop=never)
    assert asked == ["gang-a1-0.gang.ns.svc"] * 4


def test_a_listener_that_comes_late_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    looked = threading.Event()

    def listen() -> None:
        assert looked.wait(60)
        with socket.create_server(address) as late:
            late.accept()[0].close()

    thread = threading.Thread(target=listen)
    thread.start()
    wait_for_listener(*address, seconds=60, should_stop=looked.set)
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("host", ["gang-a1-0.gang.invalid", "127.0.0.1"])
def test_rank_0_that_never_listens_is_named(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TryAgain, match=r"pod 0.* is missing: .* was not reached within 0 s"):
        wait_for_listener(host, port, seconds=0.05, should_stop=never)


def test_a_stop_ends_the_wait() -> None:
    def stop() -> None:
        raise Interrupted("stopped on request")

    with pytest.raises(Interrupted):
        wait_for_listener("gang-a1-0.gang.invalid", 1, seconds=60, should_stop=stop)


def gang(size: int, *, processes: int, seconds: float) -> tuple[SharedStore, list[Rendezvous]]:
    own = [
        Rendezvous(
            rank=rank, world_size=size, host="127.0.0.1", port=0,
            processes=processes, seconds=seconds,
        )
        for rank in range(size)
    ]  # fmt: skip
    return open_store(own[0]), own


def test_all_ranks_meet() -> None:
    store, own = gang(3, processes=1, seconds=60)
    stores = [store, *(open_store(rank, port=store.port) for rank in own[1:])]
    threads = [
        threading.Thread(target=wait_for_everyone, args=pair, kwargs={"should_stop": never})
        for pair in zip(stores, own, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_pods_that_do_not_come_are_named() -> None:
    store, own = gang(6, processes=2, seconds=0.1)
    with pytest.raises(TryAgain, match=r"pods 0, 1, 2 are missing: waited 0 s for all ranks"):
        wait_for_everyone(store, own[0], should_stop=never)
    with pytest.raises(TryAgain, match=r"pods 1, 2 are missing"):
        wait_for_everyone(store, own[1], should_stop=never)


def test_many_that_are_missing_are_counted() -> None:
    assert missing_pods([5], 1) == "pod 5 is"
    assert missing_pods([4, 5], 2) == "pod 2 is"
    assert missing_pods(range(100), 4) == "pods 0, 1, 2, 3, 4, 5, 6, 7 and 17 more are"
