"""Writes progress into statuses: few and late, but the last word always (rules C11, C14, C16)."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from quantfleet_api.status import ReportedProgress
from quantfleet_operator.answers import ApiError, Refused, Stale, Unavailable
from quantfleet_server.board import Board
from quantfleet_server.cluster import Cluster
from quantfleet_server.jobs import Job, parse_job
from quantfleet_server.limits import Buckets
from quantfleet_server.metrics import STATUS_WRITES
from quantfleet_server.pace import seconds_until_due

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""How often watchers are told and writes are looked for; a new stage is told at once."""
TRIES = 5
"""Looks at a job that changes while its status is written."""
PAUSE_SECONDS = 2.0
"""Before a write that failed is tried again."""
LAST_SECONDS = 5.0
"""For the last writes when the server is told to stop."""


class Ended(Exception):
    """The job has ended, or is gone: nothing more is written."""


@dataclass(slots=True, kw_only=True)
class Writer:
    """The writes of all jobs; lives in one event loop."""

    cluster: Cluster
    board: Board
    clock: Callable[[], float]
    write_seconds: float
    budget: Buckets
    _writing: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Never returns; every job that is due is written by a task of its own."""
        while True:
            try:
                await asyncio.wait_for(self.board.wake.wait(), TICK_SECONDS)
            except TimeoutError:
                pass
            self.board.wake.clear()
            self.look()

    def look(self) -> None:
        """Tells watchers what changed, and starts the writes that are due, the oldest first."""
        now = self.clock()
        due: list[tuple[float, Job]] = []
        for uid, job in tuple(self.board.dirty.items()):
            progress = self.board.draw(job)
            written = self.board.entry(job).written
            if progress is None or uid in self._writing or self._not_before.get(uid, 0.0) > now:
                continue
            wait = seconds_until_due(progress, written, now, write_seconds=self.write_seconds)
            if wait is None:
                self.board.dirty.pop(uid, None)
            elif wait == 0:
                due.append((written.at, job))
        for _, job in sorted(due, key=lambda found: found[0]):
            if self.budget.take("", now) > 0:
                break
            self._start(job)

    def _start(self, job: Job) -> asyncio.Task[None]:
        task = asyncio.create_task(self._write_quietly(job))
        self._writing[job.uid] = task
        task.add_done_callback(lambda _: self._writing.pop(job.uid, None))
        return task

    async def _write_quietly(self, job: Job) -> None:
        """Writes a job's progress; where that fails, later again."""
        try:
            await self._write(job)
        except Ended:
            self.board.dirty.pop(job.uid, None)
            self._not_before.pop(job.uid, None)
        except ApiError as error:
            self._not_before[job.uid] = self.clock() + PAUSE_SECONDS
            logger.warning("progress not written job=%s/%s: %s", *job.key, error)
        else:
            self._not_before.pop(job.uid, None)

    async def write_now(self, job: Job) -> None:
        """Writes a job's progress before it returns, whatever the pace; raises Ended, ApiError."""
        running = self._writing.get(job.uid)
        if running is not None:
            await asyncio.shield(running)
        self.budget.take("", self.clock())
        await self._write(job)

    async def _write(self, job: Job) -> None:
        for _ in range(TRIES):
            found = self.board.jobs.find(*job.key)
            if found is None or found.uid != job.uid or found.terminal:
                raise Ended
            progress = self.board.draw(found)
            if progress is None or progress == self.board.entry(found).written.progress:
                return
            if await self._apply(found, progress):
                return
        raise Unavailable("the job changes too often")

    async def _apply(self, job: Job, progress: ReportedProgress) -> bool:
        """One write; False where the job changed meanwhile and is known anew."""
        body = progress.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            raw = await self.cluster.apply_progress(job, body)
        except (Stale, Refused) as error:
            STATUS_WRITES.labels(outcome=type(error).__name__.lower()).inc()
            if isinstance(error, Refused) and error.status != 422:
                raise
            await self._refresh(job)
            found = self.board.jobs.find(*job.key)
            if isinstance(error, Refused) and found is not None and not found.terminal:
                raise
            return False
        except ApiError:
            STATUS_WRITES.labels(outcome="failed").inc()
            raise
        STATUS_WRITES.labels(outcome="done").inc()
        written = parse_job(raw)
        self.board.changed(written)
        self.board.wrote(written, progress, self.clock())
        return True

    async def _refresh(self, job: Job) -> None:
        raw = await self.cluster.find_job(*job.key)
        if raw is not None:
            self.board.changed(parse_job(raw))
        else:
            self.board.removed(job)

    async def finish(self) -> None:
        """Writes what was not written yet; for the end of the process."""
        jobs = tuple(self.board.dirty.values())
        tasks = [self._start(job) for job in jobs if job.uid not in self._writing]
        tasks += list(self._writing.values())
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
