"""What the operator counts, for Prometheus; documented in docs/operator.md."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

RECONCILES = Counter("quantfleet_reconciles", "Looks at a job, by how they ended.", ["outcome"])
RECONCILE_SECONDS = Histogram(
    "quantfleet_reconcile_seconds",
    "Time of one look at a job, requests included.",
    # fine below the second that an operator promises under load
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 2, 5, 10, 30),
)
QUEUE_DEPTH = Gauge("quantfleet_queue_depth", "Jobs that wait to be looked at.")
RESTARTS = Counter("quantfleet_restarts", "New attempts after a failure, by cause.", ["cause"])
API_CALLS = Counter(
    "quantfleet_api_calls",
    "Requests to the API server, by verb and status class.",
    ["verb", "outcome"],
)
API_SECONDS = Histogram(
    "quantfleet_api_call_seconds",
    "Time of one request to the API server, by verb.",
    ["verb"],
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
WATCH_EVENTS = Counter("quantfleet_watch_events", "Changes that watches brought.", ["kind"])
WATCH_MISSES = Counter(
    "quantfleet_watch_misses", "Changes that only a resync found, by kind.", ["kind"]
)


class JobsByPhase(Collector):
    """Counts jobs when it is asked, so that a phase that nobody has any more reads 0."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterable[Metric]:
        """The one metric."""
        family = GaugeMetricFamily(
            "quantfleet_jobs", "QuantizationJobs, by phase.", labels=["phase"]
        )
        for phase, count in sorted(self._count().items()):
            family.add_metric([phase], count)
        yield family


def report(phases: Callable[[], Mapping[str, int]], queue_depth: Callable[[], float]) -> None:
    """Says where the figures come from that are not counted as they change."""
    REGISTRY.register(JobsByPhase(phases))
    QUEUE_DEPTH.set_function(queue_depth)
