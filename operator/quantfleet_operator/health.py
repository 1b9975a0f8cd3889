"""Whether the operator lives and is ready, and the small HTTP server that says so.

An event loop that answers proves little: a watch can fall silent and a worker can hang while it
does. So liveness looks at both ends: keys that wait too long or are looked at for too long, and
changes that only the resync finds, twice in a row, while the watch of that kind brought nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from quantfleet_operator.store import Kind

LONGEST_WAIT_SECONDS = 180.0
LONGEST_LOOK_SECONDS = 300.0
"""A look makes some ten requests of at most 35 seconds each."""
MISSES_IN_A_ROW = 2


@dataclass(slots=True, kw_only=True)
class Health:
    """What the parts of the operator report; times by the event loop's clock, in seconds."""

    clock: Callable[[], float]
    resync_seconds: float
    definition: str = "the CRD was not read yet"
    """Why the operator is not ready, "" when it is."""
    synchronized: float | None = None
    """When everything was last listed."""
    events: dict[Kind, float] = field(default_factory=dict)
    """When a watch last brought a change."""
    misses: dict[Kind, int] = field(default_factory=dict)
    """Resyncs in a row that found what the watch had not brought."""
    oldest_wait: Callable[[], float] = lambda: 0.0
    longest_look: Callable[[], float] = lambda: 0.0

    def event(self, kind: Kind) -> None:
        """A watch brought a change: it lives."""
        self.events[kind] = self.clock()
        self.misses[kind] = 0

    def resynced(self, kind: Kind, missed: int) -> None:
        """A resync found so many changes that the watch should have brought long ago."""
        self.misses[kind] = self.misses.get(kind, 0) + 1 if missed else 0

    def not_alive(self) -> str:
        """Why the process should be restarted, "" while it should not."""
        if self.oldest_wait() > LONGEST_WAIT_SECONDS:
            return f"a job waits for {self.oldest_wait():.0f} s to be looked at"
        if self.longest_look() > LONGEST_LOOK_SECONDS:
            return f"a look at a job takes {self.longest_look():.0f} s"
        silent = [kind for kind, count in self.misses.items() if count >= MISSES_IN_A_ROW]
        return f"the watch of {', '.join(sorted(silent))} is silent" if silent else ""

    def not_ready(self) -> str:
        """Why nothing is done yet, "" once the operator works."""
        if self.definition:
            return self.definition
        return "" if self.synchronized is not None else "the cluster was not listed yet"


async def serve_health(health: Health, port: int) -> web.AppRunner:
    """Serves /healthz and /readyz on all addresses; the caller cleans the runner up."""

    def answer(reason: str) -> web.Response:
        return web.Response(text=(reason or "ok") + "\n", status=503 if reason else 200)

    async def healthz(_: web.Request) -> web.Response:
        return answer(health.not_alive())

    async def readyz(_: web.Request) -> web.Response:
        return answer(health.not_ready() or health.not_alive())

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
