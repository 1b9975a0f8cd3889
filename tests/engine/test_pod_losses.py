"""Pods that lose a rank, a peer or their disk: who says what, and the next attempt's bytes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from engine_runs import BOTH, folder_digests, make_manifest, make_place
from quantfleet_api.errors import ExitCode
from tiny_models import make_tiny_model
from worker_pods import Pods, pods_of

pytestmark = [pytest.mark.distributed]

MANIFEST = make_manifest("deep", {"scheme": "W8A8"}, formats=BOTH)
LEAVE_SECONDS = 60
"""Six times what a gang may take to notice a loss and to leave."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with more layers than are committed before a test has looked."""
    folder = tmp_path_factory.mktemp("deep") / "deep"
    return {"deep": make_tiny_model(folder, "qwen2", layers=12)}


@pytest.fixture(scope="module")
def expected(deep: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of an undisturbed run."""
    place = make_place(tmp_path_factory.mktemp("undisturbed"), models=deep)
    place.publish(MANIFEST, ranks=2)
    return folder_digests(place.output())


@pytest.fixture
def pods(tmp_path: Path, deep: dict[str, Path]) -> Iterator[Pods]:
    make_place(tmp_path, models=deep)
    with pods_of(tmp_path, MANIFEST) as found:
        yield found


def finish(pods: Pods, count: int, processes: int) -> None:
    """The next attempt succeeds, and repeats a layer at most."""
    gang = pods.start_all(count, processes, attempt=2)
    ends = [pods.ends(pod) for pod in gang]
    assert [code for code, _ in ends] == [0] * count, ends
    report = json.loads(pods.output.with_name("result.report.json").read_text())
    assert [layer["repeated"] for layer in report["layers"]].count(True) <= 1
    assert report["attempts"] == 2


def test_a_killed_rank_is_named_and_the_gang_goes_on_in_the_next_attempt(
    pods: Pods, expected: dict[str, str]
) -> None:
    gang = pods.start_all(2, 2)
    pods.wait_for("attempt-*/begun.txt", "3\n")
    os.kill(pods.rank_process(1), signal.SIGKILL)
    killed = monotonic()
    ends = [pods.ends(pod) for pod in gang]
    assert monotonic() - killed < LEAVE_SECONDS
    assert [code for code, _ in ends] == [ExitCode.TRY_AGAIN] * 2
    assert "rank 1" in ends[0][1].cause
    assert "SIGKILL" in ends[0][1].cause
    assert "the plan needs" in ends[0][1].cause, "it may have been for memory"
    assert "rank 0 was lost" in ends[1][1].cause, "its pod has left"
    assert pods.processes() == [], "what they shared in memory goes with them"
    finish(pods, 2, 2)
    assert folder_digests(pods.output) == expected


def test_a_pod_that_vanishes_is_named_by_the_others(pods: Pods, expected: dict[str, str]) -> None:
    gang = pods.start_all(3)
    pods.wait_for("attempt-*/begun.txt", "3\n")
    pods.kill_pod(2)
    killed = monotonic()
    ends = [pods.ends(pod) for pod in gang[:2]]
    assert monotonic() - killed < LEAVE_SECONDS
    assert [code for code, _ in ends] == [ExitCode.TRY_AGAIN] * 2
    assert all("rank 2 was lost" in words.cause for _, words in ends), ends
    finish(pods, 2, 1)
    assert folder_digests(pods.output) == expected


def test_a_killed_pod_leaves_what_it_needs(pods: Pods) -> None:
    gang = pods.start_all(1, 2)
    pods.wait_for("attempt-*/begun.txt")
    pods.kill_pod(0)
    code, words = pods.ends(gang[0])
    assert code == -signal.SIGKILL
    assert words.cause == ""
    assert words.memory_bytes is not None
    assert words.memory_bytes > 2 * (400 << 20), "two processes"


def test_who_is_missing_is_named(pods: Pods) -> None:
    first = pods.start(0, pods=3, environment={"QUANTFLEET_BEGIN_SECONDS": "1"})
    code, words = pods.ends(first)
    assert code == ExitCode.TRY_AGAIN
    assert "pods 1, 2 are missing: waited 1 s" in words.cause
    lost = {"QUANTFLEET_BEGIN_SECONDS": "1", "MASTER_ADDR": "gang-a1-0.gang.invalid"}
    second = pods.start(2, pods=3, environment=lost)
    early = pods.start(1, pods=3, attempt=2, environment=lost)
    code, words = pods.ends(second)
    assert code == ExitCode.TRY_AGAIN
    assert "pod 0 (gang-a1-0) is missing" in words.cause
    assert "has no address" in words.cause
    code, words = pods.ends(early)
    assert code == ExitCode.TRY_AGAIN
    assert "pod 0 did not begin attempt 2 within 1 s" in words.cause


def test_a_full_volume_is_73_with_the_need_and_the_next_attempt_goes_on(
    pods: Pods, expected: dict[str, str]
) -> None:
    volume = pods.root / "out"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(volume)], check=True)
    try:
        gang = pods.start_all(2)
        pods.wait_for("attempt-*/begun.txt", "2\n")
        fill(volume / "filler")
        ends = dict(pods.ends(pod) for pod in gang)
        assert set(ends) <= {ExitCode.OUTPUT_UNWRITABLE, ExitCode.TRY_AGAIN}
        cause = ends[ExitCode.OUTPUT_UNWRITABLE].cause
        assert "no space left; the run needs" in cause
        assert "MiB of disk there" in cause
        (volume / "filler").unlink()
        finish(pods, 2, 1)
        assert folder_digests(pods.output) == expected
    finally:
        subprocess.run(["umount", "--lazy", str(volume)], check=True)


def fill(path: Path) -> None:
    """Take all the space that is left, to the last byte of the last page."""
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
