"""Worker pods of a gang: the bytes of a local run, attempts, signals, what a wrong place means."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_runs import BOTH, folder_digests, make_manifest, make_place
from quantfleet_api.errors import ExitCode, InvalidInput
from quantfleet_worker import published
from quantfleet_worker.pod import read_place
from quantfleet_worker.work_folder import work_path
from worker_pods import Pods, pods_of

pytestmark = [pytest.mark.distributed]

MODEL = "qwen2-float32-tied"


@pytest.fixture
def pods(tmp_path: Path, tiny_checkpoints: dict[str, Path]) -> Iterator[Pods]:
    make_place(tmp_path, models=tiny_checkpoints)
    with pods_of(tmp_path, make_manifest(MODEL, {"scheme": "W8A8"}, formats=BOTH)) as found:
        yield found


@pytest.mark.parametrize(("count", "processes"), [(2, 1), (2, 2), (1, 3)])
def test_pods_publish_the_bytes_of_a_local_run(
    pods: Pods,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_checkpoints: dict[str, Path],
    count: int,
    processes: int,
) -> None:
    local = make_place(tmp_path_factory.mktemp("local"), models=tiny_checkpoints)
    local.publish(make_manifest(MODEL, {"scheme": "W8A8"}, formats=BOTH), ranks=1)
    gang = pods.start_all(count, processes)
    results = [pods.ends(pod) for pod in gang]
    assert [code for code, _ in results] == [0] * count, results
    assert folder_digests(pods.output) == folder_digests(local.output())
    assert not work_path(pods.output).exists()
    report = json.loads(pods.output.with_name("result.report.json").read_text())
    assert report["bytesReadByPod"] == [report["size"]["sourceTensorBytes"]] * count
    words = results[0][1]
    manifest = pods.output / published.MANIFEST_NAME
    files = [path for path in pods.output.rglob("*") if path.is_file()]
    assert words.manifest_digest is not None
    assert words.manifest_digest.endswith(folder_digests(pods.output)[manifest.name])
    assert words.file_count == len(files)
    assert words.size_bytes == sum(path.stat().st_size for path in files)


def test_a_new_attempt_goes_on_with_other_pods_and_a_survivor_leaves(pods: Pods) -> None:
    first = [pods.start(index, pods=2) for index in range(2)]
    while not list(work_path(pods.output).glob("attempt-*/journal.json")):
        assert all(pod.poll() is None for pod in first)
    first[1].send_signal(signal.SIGKILL)
    code, words = pods.ends(first[0])
    assert code == ExitCode.TRY_AGAIN, words
    second = [pods.start(index, pods=1, processes=2, attempt=2) for index in range(1)]
    assert [pods.ends(pod)[0] for pod in second] == [0]
    again = pods.start(0, pods=1, attempt=3)
    assert pods.ends(again)[0] == 0, "the output of this very plan is there"


def test_an_older_attempt_does_not_take_the_work_from_a_later_one(pods: Pods) -> None:
    later = pods.start(0, pods=2, attempt=2)  # waits for its second pod
    token = pods.output.with_name("result.work")
    while not list(token.glob("attempt-*/token.json")):
        assert later.poll() is None, pods.ends(later)
    survivor = pods.start(0, pods=2, attempt=1)
    code, words = pods.ends(survivor)
    assert code == ExitCode.TRY_AGAIN
    assert "followed by attempt 2" in words.cause
    assert pods.ends(pods.start(1, pods=2, attempt=2))[0] == 0
    assert pods.ends(later)[0] == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_is_143_and_peers_try_again(pods: Pods, processes: int) -> None:
    gang = pods.start_all(2, processes)
    work = work_path(pods.output)
    while not list(work.glob("attempt-*/journal.json")):
        assert all(pod.poll() is None for pod in gang)
    gang[1].send_signal(signal.SIGTERM)
    codes = [pods.ends(pod)[0] for pod in gang]
    assert codes in ([ExitCode.TRY_AGAIN, ExitCode.TERMINATED], [0, 0])


def test_pods_that_see_other_files_refuse_to_begin(pods: Pods) -> None:
    first = pods.start(0, pods=2)
    while not list(work_path(pods.output).glob("attempt-*/token.json")):
        assert first.poll() is None
    calibration = pods.root / "data" / "calib.jsonl"
    lines = calibration.read_text().splitlines()
    calibration.write_text("\n".join(reversed(lines)) + "\n")
    code, words = pods.ends(pods.start(1, pods=2))
    assert code == ExitCode.INVALID_INPUT
    assert "all pods must see the same files" in words.cause


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX"),
        ({"NNODES": "none"}, "NNODES"),
        ({"QUANTFLEET_ATTEMPT": "0"}, "QUANTFLEET_ATTEMPT"),
        ({"QUANTFLEET_SPEC": ""}, "QUANTFLEET_SPEC"),
        ({"QUANTFLEET_BEGIN_SECONDS": "soon"}, "QUANTFLEET_BEGIN_SECONDS"),
    ],
)
def test_a_wrong_environment_is_named(change: dict[str, str], named: str) -> None:
    good = {
        "QUANTFLEET_SPEC": "/etc/quantfleet/job.json", "QUANTFLEET_VOLUMES": "/volumes",
        "QUANTFLEET_JOB_UID": "u", "QUANTFLEET_ATTEMPT": "1", "JOB_COMPLETION_INDEX": "1",
        "NNODES": "2", "NPROC_PER_NODE": "1", "MASTER_ADDR": "a-0.a", "MASTER_PORT": "29500",
    }  # fmt: skip
    assert read_place(good).meeting.ranks == range(1, 2)
    with pytest.raises(InvalidInput) as caught:
        read_place(good | change)
    assert caught.value.field == named
