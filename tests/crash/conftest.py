"""A tiny model, and a fork server whose ranks know `crash_points`."""

import multiprocessing.forkserver
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import crash_orders
import crash_points
from crash_bench import NUM_LAYERS, Bench, Undisturbed
from crash_process import Command
from quantfleet_worker import launch
from quantfleet_worker.gang import Gang, GangResult
from tiny_models import make_tiny_model, tiny_texts, write_jsonl


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model and texts, read-only."""
    root = tmp_path_factory.mktemp("crash-input")
    make_tiny_model(root / "llama", layers=NUM_LAYERS - 2)
    write_jsonl(root / "calib.jsonl", tiny_texts(10))
    write_jsonl(root / "eval.jsonl", tiny_texts(20, seed=1))
    return root


@pytest.fixture(scope="session")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of orders; a fork server whose ranks know `crash_points`."""
    folder = tmp_path_factory.mktemp("orders")
    patch = pytest.MonkeyPatch()
    patch.setenv(crash_orders.FOLDER_VARIABLE, str(folder))
    # the fork server takes the path of its own start, not the one that pytest made
    patch.setenv("PYTHONPATH", str(Path(crash_points.__file__).parent), prepend=os.pathsep)
    patch.setattr(launch, "PRELOADED", [*launch.PRELOADED, "crash_points"])
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield folder
    patch.undo()
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def bench(tmp_path: Path, tiny_files: Path, orders: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Output folders of this test's own."""
    (tmp_path / "out").mkdir()
    found = Bench(root=tmp_path, models=tiny_files, orders=orders)

    class WatchedGang(Gang):
        def run(self) -> GangResult:
            result = super().run()
            codes = {member.rank: member.code or 0 for member in self._members}
            found.gangs.append(codes)
            return result

    monkeypatch.setattr(launch, "Gang", WatchedGang)
    return found


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, tiny_files: Path, orders: Path
) -> Undisturbed:
    """What a run without crashes publishes, by recipe; made when first asked for."""
    root = tmp_path_factory.mktemp("whole")
    return Undisturbed(Bench(root=root, models=tiny_files, orders=orders))


@pytest.fixture
def command(bench: Bench) -> Iterator[Command]:
    """The command as a process of its own."""
    found = Command(bench)
    yield found
    found.close()
