"""A full or read-only disk: exit 73, one clear line, nothing corrupt, and the next run goes on.

The output lies on a small file system of its own, which needs root to mount.
"""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash_bench import NUM_LAYERS, Bench, Undisturbed, digests
from crash_orders import Order

pytestmark = pytest.mark.distributed

MIB = 1 << 20


@pytest.fixture
def disk(bench: Bench) -> Iterator[Path]:
    """A tmpfs of 64 MiB where the output goes."""
    folder = bench.root / "out"
    mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder))
    yield folder
    while os.path.ismount(folder):  # a test may have mounted it on itself
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: str) -> None:
    """Without the right to mount the test fails, it is never left out."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def fill(folder: Path) -> None:
    """Take all the space that is left, to the last byte of the last page."""
    with (folder / "filler").open("wb", buffering=0) as file:
        size = MIB
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


@pytest.mark.parametrize(
    ("event", "count", "rank"),
    [
        ("layer:begin", 3, 1),
        ("layer:half", 40, 0),
        ("carry:begin", 2, 1),
        ("journal:begin", 4, 0),
        ("manifest:begin", 1, 0),
        ("report:begin", 1, 0),
    ],
    ids=lambda value: str(value),
)
def test_full_disk_is_73_and_the_run_goes_on_with_more_space(
    bench: Bench, disk: Path, undisturbed: Undisturbed, event: str, count: int, rank: int
) -> None:
    order = Order(rank, event, count, "hold")
    run = bench.run_with("static", 2, order, lambda: fill(disk))
    assert run.hit is not None
    assert run.outcome.exit_code == 73, run.outcome
    assert "no space left" in run.outcome.cause
    assert str(disk) in run.outcome.cause
    assert "\n" not in run.outcome.cause
    assert 73 in run.codes.values()
    assert set(run.codes.values()) <= {73, 75, 0}
    assert not bench.output.exists()

    mount("-o", "remount,size=256m", str(disk))
    (disk / "filler").unlink()
    again = bench.run("static", 3)
    assert again.outcome.exit_code == 0, again.outcome
    assert digests(bench.output) == undisturbed.digests("static")
    assert bench.leftovers() == []
    assert len(run.solved) + len(again.solved) <= NUM_LAYERS - 2 + 1


@pytest.mark.parametrize("event", ["journal:begin", "pass1", "publish:before-rename"])
def test_disk_that_becomes_read_only_is_73(
    bench: Bench, disk: Path, undisturbed: Undisturbed, event: str
) -> None:
    def make_read_only() -> None:
        # logs are open for writing, which a plain remount would not bear
        subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
        pause = threading.Event()
        while subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=False).returncode:
            pause.wait(0.01)  # busy: the other rank is just writing a file

    count = {"journal:begin": 3, "pass1": 6}.get(event, 1)
    run = bench.run_with("static", 2, Order(0, event, count, "hold"), make_read_only)
    assert run.outcome.exit_code == 73, run.outcome
    assert "read-only file system" in run.outcome.cause
    assert not bench.output.exists()

    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    again = bench.run("static", 1)
    assert again.outcome.exit_code == 0, again.outcome
    assert digests(bench.output) == undisturbed.digests("static")


def test_read_only_place_is_refused_before_any_work(bench: Bench, disk: Path) -> None:
    mount("-o", "remount,ro", str(disk))
    run = bench.run("static", 2)
    assert run.outcome.exit_code == 73, run.outcome
    assert "read-only file system" in run.outcome.cause
    assert run.events == []


def test_disk_that_is_too_small_is_refused_with_the_sum(bench: Bench, disk: Path) -> None:
    fill(disk)
    run = bench.run("static", 2)
    assert run.outcome.exit_code == 73, run.outcome
    assert "MiB of disk" in run.outcome.cause
    assert "weights as CompressedTensors" in run.outcome.cause
    assert run.events == []
    assert [path.name for path in disk.iterdir()] == ["filler"]
