"""Many workers that report and many watchers, against a running status server; what it took.

Used by the benchmark with a thousand reports a second and by the suite with fewer. Everything
runs in one event loop of the caller's process.
"""

import asyncio
import json
import resource
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from child_process import wait_for
from reporting_jobs import Reporting, ServerPlace, rank, token_of

LAYERS = 10_000
SETTLE_SECONDS = 60.0
CLOSE_SECONDS = 0.25
"""A TLS connection closes in the rounds that a loop makes after it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """What a load of reports and watchers took."""

    reports_a_second: float
    """Reports that were answered with 200."""
    refused: int
    """Reports that were not."""
    late_p50_seconds: float
    late_p99_seconds: float
    """Time to answer, from when a report was due."""
    watchers: int
    events: int
    """Events that all watchers got."""
    watchers_without_last_state: int
    statuses_without_last_state: int
    server_bytes_at_start: int
    server_bytes_at_end: int
    server_peak_bytes: int
    settle_seconds: float
    """From the last report until every status had it."""


@dataclass(slots=True)
class Seen:
    """What one watcher has seen."""

    layers: int = -1
    events: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)


def run_load(
    place: ServerPlace,
    *,
    jobs: int,
    pods: int,
    watchers: int,
    a_second: float,
    seconds: float,
    fresh: bool = False,
) -> LoadFigures:
    """Reports of `pods` pods a job at `a_second` in all, with watchers spread over the jobs.

    With `fresh` every report comes over a connection of its own, as those of workers do.
    """
    made = [place.submit("load") for _ in range(jobs)]
    tokens = [
        [token_of(job.cluster, job.namespace, job.account, job.audience()) for _ in range(pods)]
        for job in made
    ]
    reader = place.reader()
    return asyncio.run(
        _run(
            place,
            made,
            tokens,
            reader.token,
            watchers,
            a_second=a_second,
            seconds=seconds,
            fresh=fresh,
        )
    )


async def _run(
    place: ServerPlace,
    jobs: Sequence[Reporting],
    tokens: Sequence[Sequence[str]],
    reader: str,
    watchers: int,
    *,
    a_second: float,
    seconds: float,
    fresh: bool,
) -> LoadFigures:
    assert place.server.child is not None
    process = place.server.child.process.pid
    trusted = ssl.create_default_context(cafile=place.server.authority)
    kept = aiohttp.TCPConnector(limit=0, ssl=trusted)
    used = aiohttp.TCPConnector(limit=0, ssl=trusted, force_close=fresh)
    seen = [Seen() for _ in range(watchers)]
    start_bytes = resident(process)
    async with (
        aiohttp.ClientSession(place.server.url, connector=kept) as session,
        aiohttp.ClientSession(place.server.url, connector=used) as reporting,
    ):
        following = [
            asyncio.create_task(follow(session, jobs[number % len(jobs)], reader, one))
            for number, one in enumerate(seen)
        ]
        await asyncio.wait_for(asyncio.gather(*(one.ready.wait() for one in seen)), 60)
        pods = [
            (job, pod, token)
            for job, own in zip(jobs, tokens, strict=True)
            for pod, token in enumerate(own)
        ]
        rounds = int(seconds * a_second / len(pods))
        period = len(pods) / a_second
        begun = time.monotonic()
        results = await asyncio.gather(
            *(
                report(reporting, job, pod, token, rounds, begun + period * n / len(pods), period)
                for n, (job, pod, token) in enumerate(pods)
            )
        )
        took = time.monotonic() - begun
        settle = await asyncio.to_thread(settled, jobs, rounds)
        missing = await last_states(seen, rounds)
        end_bytes = resident(process)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    await asyncio.sleep(CLOSE_SECONDS)
    late = sorted(one for result in results for one in result[0])
    return LoadFigures(
        reports_a_second=len(late) / took,
        refused=sum(result[1] for result in results),
        late_p50_seconds=late[len(late) // 2],
        late_p99_seconds=late[len(late) * 99 // 100],
        watchers=watchers,
        events=sum(one.events for one in seen),
        watchers_without_last_state=missing,
        statuses_without_last_state=settle[1],
        server_bytes_at_start=start_bytes,
        server_bytes_at_end=end_bytes,
        server_peak_bytes=peak(process),
        settle_seconds=settle[0],
    )


async def report(
    session: aiohttp.ClientSession,
    job: Reporting,
    pod: int,
    token: str,
    rounds: int,
    first: float,
    period: float,
) -> tuple[list[float], int]:
    """The reports of one pod, each when it is due; how late the answers came, and refusals."""
    late, refused = [], 0
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for number in range(1, rounds + 1):
        due = first + (number - 1) * period
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        message = job.report(rank(pod, layer=number, numLayers=LAYERS), pod=pod, sequence=number)
        body = json.dumps(message)
        while True:
            async with session.post(f"{job.path}/progress", data=body, headers=headers) as answer:
                await answer.read()
            if answer.status == 200:
                late.append(time.monotonic() - due)
                break
            refused += 1
            await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))
    return late, refused


async def follow(session: aiohttp.ClientSession, job: Reporting, token: str, seen: Seen) -> None:
    """One watcher, until it is cancelled."""
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    async with session.get(f"{job.path}/events", headers=headers, timeout=timeout) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"event:"):
                seen.events += 1
                seen.ready.set()
            elif line.startswith(b"data:") and b'"layersCompleted"' in line:
                data = json.loads(line[5:])
                progress = data.get("status", data).get("progress", data)
                seen.layers = progress["layersCompleted"]


def settled(jobs: Sequence[Reporting], layers: int) -> tuple[float, int]:
    """Seconds until every status had the last state, and how many never got it."""
    begun = time.monotonic()

    def without() -> list[str]:
        found = jobs[0].cluster.list("quantizationjobs", namespace=jobs[0].namespace)
        own = {job.name for job in jobs}
        return [
            item["metadata"]["name"]
            for item in found
            if item["metadata"]["name"] in own
            and (item["status"].get("progress") or {}).get("layersCompleted") != layers
        ]

    try:
        wait_for("last states", lambda: not without(), seconds=SETTLE_SECONDS, every=0.2)
    except TimeoutError:
        pass
    return time.monotonic() - begun, len(without())


async def last_states(seen: Sequence[Seen], layers: int) -> int:
    """How many watchers did not get the last state, some seconds after it was there."""
    for _ in range(50):
        missing = sum(1 for one in seen if one.layers != layers)
        if not missing:
            break
        await asyncio.sleep(0.1)
    return missing


def resident(process: int) -> int:
    """Memory of a process now, in bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak(process: int) -> int:
    """The most memory that a process ever had, in bytes."""
    text = Path(f"/proc/{process}/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
