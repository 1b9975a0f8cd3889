"""Ctrl-C and SIGTERM to the real command: what is finished is committed, the hint says the rest."""

import json
import os
import signal
from typing import Any

import pytest

from crash_bench import NUM_LAYERS, Bench, Undisturbed, digests
from crash_orders import TOLD_TO_STOP, Order
from crash_process import Command

pytestmark = pytest.mark.distributed


def committed(bench: Bench) -> list[dict[str, Any]]:
    """Layers of the journal."""
    (journal,) = bench.work.glob("attempt-*/journal.json")
    layers: list[dict[str, Any]] = json.loads(journal.read_text())["layers"]
    return layers


@pytest.mark.parametrize(
    ("number", "order", "finished"),
    [
        # rank 1 has finished layer 3 when rank 0 is told to stop in the middle of it
        (signal.SIGINT, Order(0, "pass2", 12, "hold"), 3),
        pytest.param(signal.SIGTERM, Order(1, "solve:task", 9, "hold"), 3, marks=pytest.mark.soak),
        # rank 1 waits for rank 0 at a phase
        pytest.param(
            signal.SIGINT, Order(0, "phase:partials", 3, "hold"), 3, marks=pytest.mark.soak
        ),
    ],
    ids=["peer-is-ahead", "sigterm", "at-a-phase"],
)
def test_stop_commits_what_is_finished(
    bench: Bench,
    undisturbed: Undisturbed,
    command: Command,
    number: signal.Signals,
    order: Order,
    finished: int,
) -> None:
    process = command.start("static", 2, order)
    command.wait_for_hit()
    if order.event == "pass2":
        command.wait_for("pass2", ranks={1}, count=15)
    os.killpg(process.pid, number)  # as a terminal does
    command.wait_for(TOLD_TO_STOP, ranks={0, 1})
    command.let_go()
    assert process.wait(20) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]

    said = command.stderr.read_text()
    assert "Traceback" not in said
    assert f"{finished} of {NUM_LAYERS} layers are committed" in said
    assert "run the same command again to go on" in said
    assert len(committed(bench)) == finished
    assert not bench.output.exists()
    run = bench.run("static", 3)
    assert run.outcome.exit_code == 0, run.outcome
    assert run.solved == list(range(max(1, finished), NUM_LAYERS - 1)), "none is solved again"
    assert digests(bench.output) == undisturbed.digests("static")


def test_second_ctrl_c_kills_at_once(
    bench: Bench, undisturbed: Undisturbed, command: Command
) -> None:
    process = command.start("static", 2, Order(1, "solve:task", 9, "hold"))  # and is never let go
    command.wait_for_hit()
    os.killpg(process.pid, signal.SIGINT)
    command.wait_for(TOLD_TO_STOP, ranks={0, 1})
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(5) == 130
    assert "Traceback" not in command.stderr.read_text()
    assert bench.run("static", 3).outcome.exit_code == 0
    assert digests(bench.output) == undisturbed.digests("static")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_stop_while_planning_leaves_nothing(
    bench: Bench, command: Command, number: signal.Signals, code: int
) -> None:
    process = command.start("static", 2, None)
    command.wait_for_output("planning")
    os.killpg(process.pid, number)
    assert process.wait(20) == code
    said = command.stderr.read_text() + command.stdout.read_text()
    assert "Traceback" not in said
    assert "KeyboardInterrupt" not in said
    assert "stopped on request" in said
    assert list((bench.root / "out").iterdir()) == []
