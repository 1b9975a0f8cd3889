"""Reports of real pods: what the server hears of a run and of its resume, and what they cost."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from engine_runs import BOTH, folder_digests, make_manifest, make_place
from quantfleet_api.errors import ExitCode
from quantfleet_api.report import ProgressReport
from quantfleet_worker.reporter import LAST_SECONDS
from status_listener import Listener, Reply, listening, taken
from tiny_models import make_tiny_model
from worker_pods import Pods, pods_of

pytestmark = [pytest.mark.distributed]

MANIFEST = make_manifest("deep", {"scheme": "W8A8"}, formats=BOTH)
LAYERS = 8  # embedding, six decoders, head


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with listening(tmp_path / "server") as found:
        yield found


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    make_place(tmp_path, models={})
    make_tiny_model(tmp_path / "models" / "deep", "qwen2", layers=LAYERS - 2)
    with pods_of(tmp_path, MANIFEST) as found:
        yield found


def reporting(listener: Listener) -> dict[str, str]:
    return {
        "QUANTFLEET_PROGRESS_URL": listener.url,
        "QUANTFLEET_PROGRESS_TOKEN_FILE": str(listener.token_file),
        "QUANTFLEET_PROGRESS_CA_FILE": str(listener.ca_file),
    }


def keeper(held: dict[int, dict[int, bool]]) -> Callable[[ProgressReport], Reply]:
    """A server that keeps the layers of each attempt, and whether they were repeated."""

    def answer(report: ProgressReport) -> Reply:
        own = held.setdefault(report.attempt, {})
        own |= {layer.layer: layer.repeated for layer in report.layers}
        return taken(knownLayers=len(own), minIntervalSeconds=0.2)

    return answer


def test_a_run_and_its_resume_are_told_to_the_end(pods: Pods, listener: Listener) -> None:
    held: dict[int, dict[int, bool]] = {}
    listener.answer = keeper(held)
    told = {"environment": reporting(listener)}
    gang = pods.start_all(2, 2, **told)
    pods.wait_for("attempt-*/begun.txt", "3\n")
    pods.kill_pod(1)
    assert pods.ends(gang[0])[0] == ExitCode.TRY_AGAIN
    last = listener.heard[-1]
    assert last.final
    assert last.summary is not None
    assert "rank 2 was lost" in last.summary.cause or "rank 3 was lost" in last.summary.cause

    gang = pods.start_all(2, 2, attempt=2, **told)
    ends = [pods.ends(pod) for pod in gang]
    assert [code for code, _ in ends] == [0, 0], ends
    second = [report for report in listener.heard if report.attempt == 2]
    final = next(report for report in second if report.final and report.pod == 0)
    assert final.summary is not None
    assert final.summary.digest == ends[0][1].manifest_digest
    assert final.summary.file_count == ends[0][1].file_count
    assert {rank.stage for rank in final.ranks} == {"Done"}
    assert {report.pod for report in listener.heard} == {0, 1}
    assert {rank.rank for report in second if report.pod == 1 for rank in report.ranks} <= {2, 3}
    assert sorted(held[2]) == list(range(LAYERS)), "those of the journal too"
    assert list(held[2].values()).count(True) <= 1
    for rank in range(4):
        layers = [r.layer for report in second for r in report.ranks if r.rank == rank]
        assert layers == sorted(layers)
        # a short attempt may end before a rank of another pod is told of
        assert all(layer >= 3 for layer in layers), "what is committed counts from the start"
    told_ranks = [rank for report in listener.heard for rank in report.ranks]
    states = [rank for rank in told_ranks if rank.stage == "Calibrating"]
    assert all(rank.num_layers == LAYERS for rank in states)
    assert any(rank.eta_seconds is not None for rank in states)
    assert all(rank.samples <= rank.num_samples for rank in states)
    said = "".join(pods.said.values()) + "".join(
        log.read_text() for log in pods.root.rglob("rank-*.log")
    )
    assert "first.token" not in said


def test_a_server_that_blocks_changes_neither_bytes_nor_code_and_costs_seconds_at_the_end(
    pods: Pods, listener: Listener
) -> None:
    gang = pods.start_all(1, 2)
    assert [pods.ends(pod)[0] for pod in gang] == [0]
    expected = folder_digests(pods.output)
    pods.output.rename(pods.output.with_name("undisturbed"))
    go = threading.Event()

    def never(report: ProgressReport) -> Reply:
        go.wait(120)
        return taken()

    listener.answer = never
    gang = pods.start_all(1, 2, environment=reporting(listener))
    while not pods.words(0).is_file() or "manifestDigest" not in pods.words(0).read_text():
        assert gang[0].poll() is None
    published = monotonic()
    assert [pods.ends(pod)[0] for pod in gang] == [0]
    assert monotonic() - published < 6 * LAST_SECONDS
    go.set()
    assert folder_digests(pods.output) == expected
    assert pods.said[0].count("progress is not reported") <= 1
