"""What cannot finish is refused before it begins."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantfleet_api.errors import ExitCode, InvalidInput, OutputUnwritable
from quantfleet_worker import available_memory, preflight, published
from quantfleet_worker.memory import MemoryItem, memory_sum, total_bytes
from quantfleet_worker.places import Places
from quantfleet_worker.work_folder import work_path

GIB = 1 << 30


def check(planned: Any, ranks: int = 1) -> tuple[str, ...]:
    return preflight.preflight(planned, world_size=ranks, local_world_size=ranks)


def test_a_job_that_fits_passes_and_leaves_nothing_behind(bench: Any) -> None:
    assert check(bench.plan(), len(os.sched_getaffinity(0))) == ()
    assert list((bench.root / "out").iterdir()) == []


def test_more_threads_than_cores_are_a_warning(bench: Any) -> None:
    cores = len(os.sched_getaffinity(0))
    (warning,) = check(bench.plan(workers__threadsPerProcess=cores), 2)
    assert f"2 ranks of {cores} threads share {cores} cores" in warning


def test_an_output_that_exists_is_refused_unless_it_may_be_replaced(bench: Any) -> None:
    (bench.root / "out" / "result").mkdir()
    with pytest.raises(InvalidInput) as refused:
        check(bench.plan())
    assert refused.value.field == "spec.output.pvc.path"
    assert refused.value.value == str(bench.root / "out" / "result")
    assert "must not exist yet" in refused.value.rule
    assert check(bench.plan(output__overwritePolicy="Replace")) == ()


def test_an_output_of_this_very_plan_is_no_obstacle(bench: Any) -> None:
    planned = bench.plan()
    planned.output.mkdir()
    path = planned.output / published.MANIFEST_NAME
    path.write_bytes(published.manifest({}, planned.plan.digest))
    assert preflight.already_published(planned)
    assert check(planned) == ()
    path.write_bytes(published.manifest({}, "another"))
    assert not preflight.already_published(planned)
    with pytest.raises(InvalidInput, match="must not exist yet"):
        check(planned)


def test_an_output_that_is_a_file_is_never_replaced(bench: Any) -> None:
    (bench.root / "out" / "result").write_text("mine")
    with pytest.raises(InvalidInput, match="must be a folder where it exists"):
        check(bench.plan(output__overwritePolicy="Replace"))


def test_an_output_below_a_file_is_refused(bench: Any) -> None:
    (bench.root / "out" / "taken").write_text("mine")
    where = {"claimName": "out", "path": "taken/result"}
    with pytest.raises(InvalidInput) as refused:
        check(bench.plan(output__pvc=where))
    assert refused.value.field == "spec.output.pvc.path"
    assert "must lie in folders" in refused.value.rule


def test_an_output_inside_the_model_is_refused_also_through_a_link(bench: Any) -> None:
    real = bench.volumes["models"] / "llama"
    (bench.root / "out" / "link").symlink_to(real.resolve())
    planned = bench.plan(output__pvc={"claimName": "out", "path": "link/result"})
    with pytest.raises(InvalidInput) as refused:
        preflight.check_places(planned.places)
    assert refused.value.field == "spec.output.pvc.path"
    assert "must not lie in the model" in refused.value.rule


@pytest.mark.parametrize("suffix", ["", ".work", ".rejected"])
def test_an_output_that_holds_the_texts_is_refused(tmp_path: Path, suffix: str) -> None:
    places = Places(
        model=tmp_path / "model",
        output=tmp_path / "result",
        calibration=tmp_path / "other" / "calib.jsonl",
        evaluation=tmp_path / f"result{suffix}" / "eval.jsonl",
    )
    with pytest.raises(InvalidInput) as refused:
        preflight.check_places(places)
    assert refused.value.field == "spec.output.pvc.path"
    assert f"must not hold what is read, {places.evaluation}" in refused.value.rule


def test_a_read_only_place_is_unwritable_not_invalid(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = bench.plan()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OutputUnwritable, match="permission denied") as refused:
        check(planned)
    assert refused.value.exit_code == ExitCode.OUTPUT_UNWRITABLE
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=1 << 40, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    with pytest.raises(OutputUnwritable, match="read-only file system"):
        check(planned)


def test_too_little_disk_may_be_tried_again(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = bench.plan()
    needed = sum(item.num_bytes for item in preflight.disk_items(planned))
    set_free(monkeypatch, needed - 1)
    with pytest.raises(OutputUnwritable, match="are free") as refused:
        check(planned)
    assert "weights as CompressedTensors" in str(refused.value)
    set_free(monkeypatch, needed)
    assert check(planned) == ()


def test_what_an_earlier_attempt_wrote_counts_as_there(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = bench.plan()
    needed = sum(item.num_bytes for item in preflight.disk_items(planned))
    set_free(monkeypatch, needed - 1000)
    (work_path(planned.output) / "out").mkdir(parents=True)
    (work_path(planned.output) / "out" / "layer").write_bytes(b"x" * 1000)
    preflight.check_disk(planned.output, preflight.disk_items(planned))


def set_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    found = SimpleNamespace(f_flag=0, f_bavail=num_bytes, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: found)


def test_activations_are_kept_each_layer_if_they_fit(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = bench.plan(checkpoint__everyLayers=0)
    needed = sum(item.num_bytes for item in preflight.disk_items(planned))
    set_free(monkeypatch, needed)
    assert preflight.choose_checkpoint_distance(planned) == 1
    set_free(monkeypatch, needed - 1)
    assert preflight.choose_checkpoint_distance(planned) > len(planned.plan.layers)
    assert check(planned) == (), "the run then does without"
    assert preflight.choose_checkpoint_distance(bench.plan(checkpoint__everyLayers=3)) == 3


def test_too_little_memory_is_refused_with_the_sum() -> None:
    items = [MemoryItem(name="weights of a layer", num_bytes=3 * GIB)]
    preflight.check_memory(items, 2, available_bytes=None)
    preflight.check_memory(items, 2, available_bytes=8 * GIB)
    with pytest.raises(InvalidInput) as refused:
        preflight.check_memory(items, 3, available_bytes=8 * GIB)
    assert refused.value.field == "spec.workers"
    assert refused.value.value == "3 ranks on this machine"
    assert "8.0 GiB" in refused.value.rule
    assert "weights of a layer 3.0 GiB" in refused.value.rule


def test_ranks_are_limited_by_cores_leaves_and_memory(bench: Any) -> None:
    plan = bench.plan().plan

    def chosen(cores: int, threads: int = 1, available: int | None = None) -> int:
        return preflight.default_world_size(
            plan, threads=threads, cores=cores, available_bytes=available
        )

    assert chosen(4) == 4
    assert chosen(64) == 6, "there are six micro-batches"
    assert chosen(8, threads=3) == 2
    assert chosen(2, threads=4) == 1
    one = preflight.PROCESS_BYTES + total_bytes(memory_sum(plan, world_size=3))
    assert chosen(8, available=3 * one + 100) == 3
    assert chosen(8, available=0) == 1


def test_ranks_are_as_asked_for(bench: Any) -> None:
    asked = bench.plan(workers={"count": 2, "processesPerWorker": 2})
    assert preflight.choose_world_size(asked, workers=None) == 4
    assert preflight.choose_world_size(asked, workers=3) == 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2048 kB\n"}, 2048 * 1024),
        ({}, None),
        (
            {
                "proc/meminfo": "MemAvailable: 2048 kB\n",
                "proc/self/cgroup": "0::/pod/me\n",
                "sys/fs/cgroup/pod/me/memory.max": "max\n",
                "sys/fs/cgroup/pod/me/memory.current": "5\n",
                "sys/fs/cgroup/pod/memory.max": "1000000\n",
                "sys/fs/cgroup/pod/memory.current": "700000\n",
                "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 100000\n",
            },
            400_000,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "800\n",
                "sys/fs/cgroup/memory.current": "900\n",
            },
            0,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 2048 kB\n",
                "proc/self/cgroup": "4:cpu,memory:/docker/x\n1:name=systemd:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "500000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "200000\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 50000\n",
            },
            350_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "200000\n",
            },
            None,
        ),
    ],
    ids=["machine", "unknown", "v2-parent", "v2-full", "v1", "v1-unlimited"],
)
def test_available_memory_is_the_least_of_all_limits(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory.available_bytes(tmp_path) == expected


def test_the_disk_sum_is_what_files_will_take(bench: Any) -> None:
    planned = bench.plan("qwen2", output__formats=["Ascend", "CompressedTensors"])
    items = {item.name: item.num_bytes for item in preflight.disk_items(planned)}
    folder = bench.volumes["models"] / "qwen2"
    copied = sum((folder / name).stat().st_size for name in planned.plan.copied_files)
    assert items["copied files"] == 2 * copied
    padded = sum(max(b.lengths) * len(b.lengths) for b in planned.plan.micro_batches)
    assert items["activations, two layers of them"] == 2 * padded * 64 * 4
    rows = 2 * (64 + 32 + 32 + 64 + 160 + 160 + 64)
    assert items["what the first format loses"] == 4 * rows, "float32 weight scales"
