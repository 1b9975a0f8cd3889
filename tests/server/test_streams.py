"""A stream of events as its watcher takes it: slow ones miss steps and never the last state."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from quantfleet_api.report import LayerReport, ProgressReport, RankReport
from quantfleet_server.authentication import open_door
from quantfleet_server.board import Board
from quantfleet_server.channel import KEPT
from quantfleet_server.jobs import Job, parse_job
from quantfleet_server.parts import Parts
from quantfleet_server.settings import Settings
from quantfleet_server.streams import _events

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def job_at(version: int, **status: Any) -> Job:
    meta = {"namespace": "n", "name": "j", "uid": "u", "resourceVersion": str(version)}
    return parse_job({"metadata": meta, "status": {"attempt": 1, **status}})


def ended(version: int) -> Job:
    condition = {"type": "Complete", "status": "True", "reason": "Published"}
    time = {"lastTransitionTime": "2026-11-30T12:00:00Z"}
    return job_at(version, conditions=[condition | time])


def parts_of(board: Board) -> Parts:
    """Parts for streams alone: nobody asks the API server here."""
    door = open_door(
        None,  # type: ignore[arg-type]
        wall=lambda: 0.0,
        clock=lambda: 0.0,
        token_seconds=1,
        reports_per_second=1,
    )
    return Parts(
        settings=Settings(certificate_file=Path("c"), key_file=Path("k")),
        cluster=None,  # type: ignore[arg-type]
        board=board,
        door=door,
        writer=None,  # type: ignore[arg-type]
        now=lambda: NOW,
        not_alive=lambda: "",
        not_ready=lambda: "",
    )


def report(board: Board, job: Job, number: int) -> None:
    rank = RankReport(rank=0, world_size=1, stage="Calibrating", layer=number, num_layers=1000)
    layer = LayerReport(layer=number, seconds=1.0)
    message = ProgressReport(attempt=1, pod=0, sequence=number, ranks=(rank,), layers=(layer,))
    board.take(job, message, NOW)
    board.draw(job)


def follow(board: Board, job: Job, number: int | None = None) -> AsyncIterator[Any]:
    channel = board.entry(job).channel
    return _events(None, parts_of(board), job, channel, number)  # type: ignore[arg-type]


Story = Callable[[Board, Job], Coroutine[Any, Any, None]]


def told(story: Story) -> None:
    board, job = Board(epoch="e"), job_at(1)
    board.changed(job)
    asyncio.run(asyncio.wait_for(story(board, job), 30))


def test_a_watcher_that_fell_behind_gets_the_whole_state() -> None:
    async def story(board: Board, job: Job) -> None:
        slow = follow(board, job)
        assert (await anext(slow)).event == "snapshot"
        for number in range(1, KEPT + 10):
            report(board, job, number)
        caught_up = await anext(slow)
        assert caught_up.event == "snapshot"
        progress = json.loads(caught_up.data)["status"]["progress"]
        assert progress["layersCompleted"] == KEPT + 9
        report(board, job, KEPT + 10)
        assert [(await anext(slow)).event for _ in range(2)] == ["layers", "progress"]

    told(story)


def test_however_many_watch_the_events_are_kept_once() -> None:
    async def story(board: Board, job: Job) -> None:
        watchers = [follow(board, job) for _ in range(500)]
        for watcher in watchers:
            await anext(watcher)
        assert board.watchers == 500
        for number in range(1, 1000):
            report(board, job, number)
        kept = board.entry(job).channel.after(board.entry(job).channel.last - KEPT)
        assert kept is not None
        assert len(kept) == KEPT
        for watcher in watchers:
            await watcher.aclose()  # type: ignore[attr-defined]
        assert board.watchers == 0

    told(story)


def test_a_job_that_ends_ends_its_stream_and_a_server_that_goes_only_the_stream() -> None:
    async def story(board: Board, job: Job) -> None:
        first, second = follow(board, job), follow(board, job)
        await anext(first)
        await anext(second)
        board.changed(ended(2))
        assert [event.event async for event in first] == ["status", "end"]
        board.close()
        assert [event.event async for event in second] == ["status"]

    told(story)


@pytest.mark.parametrize("version", [1, 2])
def test_a_job_made_again_under_its_name_is_another(version: int) -> None:
    board, job = Board(epoch="e"), job_at(1)
    board.changed(job)
    report(board, job, 3)
    meta = {"namespace": "n", "name": "j", "uid": "v", "resourceVersion": str(version)}
    board.changed(parse_job({"metadata": meta}))
    found = board.jobs.find("n", "j")
    assert found is not None
    if version == 1:  # not newer: an old word about it
        assert found.uid == "u"
        return
    assert found.uid == "v"
    assert board.entry(found).live.ranks == {}
    assert board.dirty == {}


def test_a_list_removes_what_it_lacks_and_keeps_what_is_newer() -> None:
    board = Board(epoch="e")
    board.changed(job_at(5))
    board.listed((), 4, None)
    assert len(board.jobs) == 1
    board.listed((), 5, "other")
    assert len(board.jobs) == 1
    board.listed((), 5, None)
    assert len(board.jobs) == 0
