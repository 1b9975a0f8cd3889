"""What the server counts, for Prometheus; documented in docs/server.md. No label names a job."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter(
    "quantfleet_server_requests", "Answered requests, by route and status.", ["route", "status"]
)
REPORTS = Counter("quantfleet_server_reports", "Reports of workers, by outcome.", ["outcome"])
REPORT_SECONDS = Histogram(
    "quantfleet_server_report_seconds",
    "Time to answer a report.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
STATUS_WRITES = Counter(
    "quantfleet_server_status_writes", "Writes of progress into statuses, by outcome.", ["outcome"]
)
API_CALLS = Counter(
    "quantfleet_server_api_calls",
    "Requests to the API server, by kind and outcome.",
    ["kind", "outcome"],
)
WATCH_RESTARTS = Counter("quantfleet_server_watch_restarts", "Watches that began with a list.")
WATCHERS = Gauge("quantfleet_server_watchers", "Open streams of events.")
JOBS = Gauge("quantfleet_server_jobs", "Jobs that are known.")
CERTIFICATES = Counter("quantfleet_server_certificates_loaded", "Certificates that were taken up.")
