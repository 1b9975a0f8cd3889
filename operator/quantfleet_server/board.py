"""All that is known of jobs, for the routes and the writer: what the watch says and workers report.

Lives in one event loop. The status of a job that has ended is the API server's alone; before that
its progress is what the workers reported last.
"""

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from quantfleet_api.report import ProgressReport
from quantfleet_api.status import JobStatus, ReportedProgress
from quantfleet_server.channel import Channel
from quantfleet_server.jobs import Job, Jobs
from quantfleet_server.live import Live, Taken
from quantfleet_server.metrics import JOBS
from quantfleet_server.pace import Written

MOST_ENDED = 200
"""Jobs that have ended whose ranks and layers are still shown; then the report file has them."""


@dataclass(slots=True)
class Entry:
    """One job's reports, events and writes."""

    live: Live
    channel: Channel
    written: Written
    shown: ReportedProgress | None = None
    """What watchers were told last."""


@dataclass(slots=True, kw_only=True)
class Board:
    """The jobs and their reports."""

    epoch: str
    jobs: Jobs = field(default_factory=Jobs)
    dirty: dict[str, Job] = field(default_factory=dict)
    """Jobs, by UID, with reports that were not written yet."""
    watchers: int = 0
    """Open streams of events."""
    closing: bool = False
    """Whether the server ends, and with it all streams."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _entries: dict[str, Entry] = field(default_factory=dict)
    _ended: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def entry(self, job: Job) -> Entry:
        """The reports of a job, which go on from what its status says."""
        found = self._entries.get(job.uid)
        if found is None:
            written = Written(progress=job.status.progress)
            found = Entry(live=Live(), channel=Channel(epoch=self.epoch), written=written)
            self._entries[job.uid] = found
            if job.terminal:
                self._end(job)
        found.live.seed(job.status.progress)
        found.live.begin(job.status.attempt)
        return found

    def take(self, job: Job, report: ProgressReport, now: datetime) -> Taken:
        """Merges a report of a job's present attempt."""
        entry = self.entry(job)
        taken = entry.live.take(report, now)
        if not taken.stale:
            self.dirty[job.uid] = job
            if taken.layers:
                layers = [layer.model_dump(mode="json", by_alias=True) for layer in taken.layers]
                data = {"attempt": report.attempt, "layers": layers}
                entry.channel.publish("layers", json.dumps(data))
            if taken.stage_changed or report.final:
                self.wake.set()
        return taken

    def draw(self, job: Job) -> ReportedProgress | None:
        """A job's progress as it is now; its watchers hear of it where it changed."""
        entry = self.entry(job)
        if job.terminal:
            return job.status.progress
        progress = entry.live.draw()
        if progress is not None and progress != entry.shown and job.uid in self.dirty:
            entry.shown = progress
            data = progress.model_dump_json(by_alias=True, exclude_none=True)
            entry.channel.publish("progress", data)
        return progress

    def status(self, job: Job) -> JobStatus:
        """A job's status, its progress as the workers reported it last."""
        return job.status.model_copy(update={"progress": self.draw(job)})

    def wrote(self, job: Job, progress: ReportedProgress, now: float) -> None:
        """A job's progress is in its status; nothing waits unless more was reported since."""
        entry = self.entry(job)
        entry.written = Written(progress=progress, at=now)
        if entry.live.draw() == progress:
            self.dirty.pop(job.uid, None)

    def listed(self, jobs: tuple[Job, ...], version: int, namespace: str | None) -> None:
        """Everything of a namespace (None: of all), as it was at a version."""
        for job in jobs:
            self.changed(job)
        for job in self.jobs.missing({job.key for job in jobs}, version, namespace):
            self.removed(job)

    def changed(self, job: Job) -> None:
        """A version of a job; one that is not newer is passed over."""
        before = self.jobs.find(*job.key)
        if not self.jobs.put(job):
            return
        JOBS.set(len(self.jobs))
        if before is not None and before.uid != job.uid:
            self._gone(before)
        self._changed(job)

    def removed(self, job: Job) -> None:
        """A job is gone."""
        if self.jobs.remove(job):
            self._gone(job)
            JOBS.set(len(self.jobs))

    def _changed(self, job: Job) -> None:
        entry = self._entries.get(job.uid)
        if job.uid in self.dirty:
            self.dirty[job.uid] = job
        if entry is None:
            return
        entry.live.seed(job.status.progress)
        entry.live.begin(job.status.attempt)
        if job.terminal:
            self.dirty.pop(job.uid, None)
        data = self.status(job).model_dump_json(by_alias=True, exclude_none=True)
        if not entry.channel.ended:
            entry.channel.publish("status", data)
        if job.terminal:
            self._end(job)

    def _end(self, job: Job) -> None:
        self._entries[job.uid].channel.end()
        self._ended[job.uid] = None
        while len(self._ended) > MOST_ENDED:
            old, _ = self._ended.popitem(last=False)
            self._entries.pop(old, None)

    def _gone(self, job: Job) -> None:
        self.dirty.pop(job.uid, None)
        self._ended.pop(job.uid, None)
        entry = self._entries.pop(job.uid, None)
        if entry is not None:
            entry.channel.publish("deleted", json.dumps({"uid": job.uid}))
            entry.channel.end()

    def close(self) -> None:
        """Lets all watchers go: the server ends, and their jobs do not."""
        self.closing = True
        for entry in self._entries.values():
            entry.channel.end()
