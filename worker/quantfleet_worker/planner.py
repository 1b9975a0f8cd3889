"""The planning process: make the plan and check that it can be carried out, before any rank starts.

Started by `launch.py` in a process of its own, so that the launcher itself stays small and needs no
torch; it answers with plan and tokens, or with the error.
"""

from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from quantfleet_api.errors import QuantFleetError
from quantfleet_api.spec import QuantizationJob
from quantfleet_worker import available_memory
from quantfleet_worker.device import configure_numerics
from quantfleet_worker.disk import total_disk_bytes
from quantfleet_worker.handover import packed_tokens
from quantfleet_worker.messages import Ready
from quantfleet_worker.planning import Planned, make_plan
from quantfleet_worker.preflight import (
    check_processes,
    choose_checkpoint_distance,
    choose_world_size,
    disk_items,
    memory_items,
    needed_memory,
    preflight,
)


def planner_main(
    connection: Connection,
    job: str,
    volumes: Mapping[str, Path],
    workers: int | None,
    processes: int | None = None,
) -> None:
    """Answer with `Ready`, or with the error that refuses the job; a bug ends the process."""
    try:
        answer: Ready | QuantFleetError = plan_and_check(
            QuantizationJob.model_validate_json(job),
            volumes=volumes,
            workers=workers,
            processes=processes,
        )
    except QuantFleetError as error:
        answer = error
    connection.send(answer)
    connection.close()


def plan_and_check(
    job: QuantizationJob,
    *,
    volumes: Mapping[str, Path],
    workers: int | None,
    processes: int | None = None,
) -> Ready:
    """Plan, choose the number of ranks, and see whether that many can finish.

    `processes` of them run here; None = all.
    """
    threads = job.spec.workers.threads_per_process
    configure_numerics(threads)
    planned = make_plan(job, volumes=volumes)
    world_size = choose_world_size(planned, workers=workers)
    local = processes or world_size
    check_processes(local, available_bytes=available_memory.available_bytes())
    notes = preflight(planned, world_size=world_size, local_world_size=local)
    items = memory_items(planned, world_size=world_size, local_world_size=local)
    return Ready(
        plan=planned.plan.model_dump_json(),
        digest=planned.plan.digest,
        job=planned.job.model_dump_json(by_alias=True),
        tokens=_packed(planned),
        model_folder=planned.checkpoint.folder,
        output=planned.output,
        world_size=world_size,
        threads=threads,
        num_layers=len(planned.plan.layers),
        warnings=planned.warnings,
        notes=notes,
        memory_bytes=needed_memory(items, local),
        disk_bytes=total_disk_bytes(disk_items(planned)),
    )


def _packed(planned: Planned) -> bytes:
    return packed_tokens(
        planned.tokens,
        planned.offsets,
        planned.windows,
        checkpoint_every=choose_checkpoint_distance(planned),
        warnings=planned.warnings,
    )
