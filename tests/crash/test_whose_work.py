"""One output, one plan, one run at a time."""

import os
from pathlib import Path

import pytest

from crash_bench import NUM_LAYERS, Bench, Undisturbed, digests
from crash_orders import Order
from crash_process import Command
from quantfleet_api.errors import InvalidInput, TryAgain
from quantfleet_worker.journal import Journal, read_journal, write_journal
from quantfleet_worker.work_folder import (
    WorkFolder,
    begin_attempt,
    latest_attempt,
    locked,
    work_path,
)


@pytest.mark.distributed
def test_journal_of_another_plan_is_refused_with_what_differs(
    bench: Bench, undisturbed: Undisturbed
) -> None:
    assert bench.run("static", 2, Order(1, "solve:task", 9)).outcome.exit_code == 75
    before = digests(bench.work)
    other = bench.run("other-alpha", 2)
    assert other.outcome.exit_code == 64
    assert other.outcome.cause.startswith("spec.output: must continue the plan of its work folder")
    assert "--discard-journal" in other.outcome.cause
    assert "0.5" in other.outcome.cause
    assert "0.75" in other.outcome.cause
    assert other.events == []
    assert digests(bench.work) == before, "nothing of the other plan's work is touched"

    discarded = bench.run("other-alpha", 1, discard_journal=True)
    assert discarded.outcome.exit_code == 0, discarded.outcome
    assert discarded.solved == list(range(1, NUM_LAYERS - 1)), "all anew"
    assert digests(bench.output) == undisturbed.digests("other-alpha")
    assert digests(bench.output) != undisturbed.digests("static")


@pytest.mark.distributed
def test_second_run_on_one_output_is_refused_and_the_first_goes_on(
    bench: Bench, undisturbed: Undisturbed, command: Command
) -> None:
    process = command.start("static", 2, Order(1, "pass1", 7, "hold"))
    command.wait_for_hit()
    second = bench.second_run("static", 1)
    assert second.exit_code == 64
    assert "must not be written by another run at the same time" in second.cause
    command.let_go()
    assert process.wait(60) == 0, command.stderr.read_text()
    assert digests(bench.output) == undisturbed.digests("static")
    assert bench.leftovers() == []


def test_lock_is_held_by_one_and_freed_by_its_end(tmp_path: Path) -> None:
    output = tmp_path / "result"
    with locked(output):
        with pytest.raises(InvalidInput, match="another run at the same time"), locked(output):
            pass
    assert not work_path(output).exists(), "a folder that holds nothing but a lock goes"
    with locked(output):
        begin_attempt(output)
    with locked(output):
        assert latest_attempt(output) == WorkFolder(output=output, attempt=1)


def test_attempt_that_was_followed_cannot_write_anything(tmp_path: Path) -> None:
    """Not even where it made sure, just before, that it was the latest."""
    output = tmp_path / "result"
    work_path(output).mkdir()
    old = begin_attempt(output)
    write_journal(old, Journal(plan_digest="a", attempt=1, numerics={}))
    with pytest.raises(TryAgain, match="attempt 1 was followed by attempt 2"):
        followed_while_writing(old)
    new = WorkFolder(output=output, attempt=2)
    everything = digests(tmp_path)
    for path in (
        old.publishing / "model.safetensors",
        old.path / "journal.json",
        old.carry(1, range(3)),
        output.with_name("result.report.json"),
    ):
        with pytest.raises(TryAgain, match="followed by attempt 2"):
            old.write_bytes(path, b"late")
    with pytest.raises(TryAgain), old.writing(output):
        old.publishing.rename(output)
    with pytest.raises(TryAgain):
        read_journal(old)
    assert digests(tmp_path) == everything
    assert not old.path.exists()
    found = read_journal(new)
    assert found is not None
    assert found.attempt == 2


def followed_while_writing(old: WorkFolder) -> None:
    with old.new_file(old.publishing / "model.safetensors") as file:
        file.write(b"half")
        old.check_fence()
        new = begin_attempt(old.output)
        write_journal(new, Journal(plan_digest="a", attempt=2, numerics={}))
        file.write(b" and the rest")


def test_attempt_whose_work_was_removed_does_not_make_it_again(tmp_path: Path) -> None:
    output = tmp_path / "result"
    work_path(output).mkdir()
    old = begin_attempt(output)
    old.write_bytes(old.publishing / "a", b"a")
    (old.publishing / "a").unlink()
    old.publishing.rmdir()
    os.rmdir(old.path)
    work_path(output).rmdir()
    with pytest.raises(TryAgain, match="was taken away"):
        old.write_bytes(old.publishing / "a", b"a")
    assert list(tmp_path.iterdir()) == []


def test_discarding_keeps_only_the_number_of_the_attempt(tmp_path: Path) -> None:
    output = tmp_path / "result"
    work_path(output).mkdir()
    old = begin_attempt(output)
    old.write_bytes(old.publishing / "a", b"a")
    old.write_bytes(old.carry(3, range(1, 2)), b"a")
    new = begin_attempt(output, discard=True)
    assert new.attempt == 2
    assert list(new.path.iterdir()) == []
    with pytest.raises(TryAgain):
        old.check_fence()


def test_attempt_that_is_followed_while_it_removes_a_folder_removes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "result"
    work_path(output).mkdir()
    old = begin_attempt(output)
    for start in range(3):
        old.write_bytes(old.carry(1, range(start, start + 1)), b"a")
    unlink = Path.unlink

    def followed(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        monkeypatch.undo()
        begin_attempt(output)

    monkeypatch.setattr(Path, "unlink", followed)
    old.remove(old.carry_folder(1))
    new = WorkFolder(output=output, attempt=2)
    assert len(list(new.carry_folder(1).iterdir())) == 2
