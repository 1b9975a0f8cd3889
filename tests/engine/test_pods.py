"""Worker pods as processes of this machine: the environment that the operator gives, one folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_runs import BOTH, Manifest, folder_digests, make_manifest, make_place
from quantfleet_api.errors import ExitCode, InvalidInput
from quantfleet_api.loading import parse_job
from quantfleet_api.termination import Termination, parse_termination
from quantfleet_worker import published
from quantfleet_worker.exchange import open_store
from quantfleet_worker.messages import Rendezvous
from quantfleet_worker.pod import read_place
from quantfleet_worker.work_folder import work_path

pytestmark = [pytest.mark.distributed]

MODEL = "qwen2-float32-tied"


def free_port() -> int:
    return int(open_store(Rendezvous(rank=0, world_size=1, host="127.0.0.1", port=0)).port)


class Pods:
    """Starts pods of one job; every process it starts is ended."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.spec = root / "job.json"
        self.spec.write_text(json.dumps(parse_job(manifest).model_dump(mode="json", by_alias=True)))
        self.port = free_port()
        self.started: list[subprocess.Popen[str]] = []
        self.index: dict[int, int] = {}

    def start(
        self, index: int, *, pods: int, processes: int = 1, attempt: int = 1
    ) -> subprocess.Popen[str]:
        environment = os.environ | {
            "QUANTFLEET_SPEC": str(self.spec),
            "QUANTFLEET_VOLUMES": str(self.root),
            "QUANTFLEET_JOB_UID": "0b5c7d1e-0000-4000-8000-000000000000",
            "QUANTFLEET_ATTEMPT": str(attempt),
            "JOB_COMPLETION_INDEX": str(index),
            "NNODES": str(pods),
            "NPROC_PER_NODE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "QUANTFLEET_TERMINATION_LOG": str(self.words(index)),
        }
        pod = subprocess.Popen(
            [sys.executable, "-m", "quantfleet_worker"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(pod)
        self.index[pod.pid] = index
        return pod

    def words(self, index: int) -> Path:
        """Where the pod leaves its last words."""
        return self.root / f"words-{index}.json"

    def ends(self, pod: subprocess.Popen[str]) -> tuple[int, Termination]:
        """Exit code and last words."""
        said = pod.communicate(timeout=120)[1]
        index = self.index[pod.pid]
        assert self.words(index).is_file(), said
        return pod.returncode, parse_termination(self.words(index).read_text())

    @property
    def output(self) -> Path:
        return self.root / "out" / "result"


@pytest.fixture
def pods(tmp_path: Path, tiny_checkpoints: dict[str, Path]) -> Iterator[Pods]:
    make_place(tmp_path, models=tiny_checkpoints)
    found = Pods(tmp_path, make_manifest(MODEL, {"scheme": "W8A8"}, formats=BOTH))
    yield found
    for pod in found.started:
        pod.kill()
        pod.communicate()


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
    gang = [pods.start(index, pods=count, processes=processes) for index in range(count)]
    results = [pods.ends(pod) for pod in gang]
    assert [code for code, _ in results] == [0] * count, results
    assert folder_digests(pods.output) == folder_digests(local.output())
    assert not work_path(pods.output).exists()
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


def test_sigterm_is_143_and_peers_try_again(pods: Pods) -> None:
    gang = [pods.start(index, pods=2) for index in range(2)]
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
