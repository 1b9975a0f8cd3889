"""The writer's thread: in order, and whatever a job raises reaches the thread that waits."""

import threading

import pytest

from quantfleet_api.errors import OutputUnwritable
from quantfleet_worker.writer import Writer


def test_jobs_run_in_order_and_waiting_returns_when_one_is_done() -> None:
    writer, done = Writer(), list[int]()
    for layer in range(3):
        writer.submit(layer, lambda layer=layer: done.append(layer))  # type: ignore[misc]
    writer.wait(2)
    assert done == [0, 1, 2]
    writer.close()


@pytest.mark.parametrize(
    "error", [OutputUnwritable("full"), TypeError("bug"), KeyError("bug"), MemoryError()], ids=repr
)
def test_whatever_a_job_raises_is_raised_where_it_is_awaited(error: BaseException) -> None:
    writer, after = Writer(), threading.Event()

    def job() -> None:
        raise error

    writer.submit(0, job)
    with pytest.raises(type(error)):
        writer.wait(0)
    with pytest.raises(type(error)):
        writer.submit(1, after.set)
    assert not after.is_set()
