"""Can this finish? Asked before any rank starts, of this machine and of the place of the output.

Called by the launcher after planning, and by `quantfleet plan`. What a user must change is
InvalidInput; a place that cannot be written now, but may be later, is OutputUnwritable. The room
in /dev/shm is not asked about: weights that ranks share lie in memory, but in no folder.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from quantfleet_api.errors import InvalidInput, OutputUnwritable
from quantfleet_api.plan import Plan
from quantfleet_api.quantities import shown_bytes
from quantfleet_worker import available_memory, published
from quantfleet_worker.disk import DiskItem, activation_bytes, disk_sum, total_disk_bytes
from quantfleet_worker.memory import MemoryItem, bytes_of_ranks, memory_sum
from quantfleet_worker.places import Places
from quantfleet_worker.planning import Planned
from quantfleet_worker.work_folder import work_path

PROCESS_BYTES = 450 << 20
"""Memory of a rank before it does anything: the interpreter, torch and transformers."""

NEVER = 1 << 30  # layers between activation checkpoints: more than any model has

_OUTPUT = "spec.output.pvc.path"


def preflight(planned: Planned, *, world_size: int, local_world_size: int) -> tuple[str, ...]:
    """Refuse what cannot finish; return warnings. `local_world_size` ranks are on this machine."""
    check_places(planned.places)
    check_output(planned)
    check_disk(planned.output, disk_items(planned))
    items = memory_items(planned, world_size=world_size, local_world_size=local_world_size)
    check_memory(items, local_world_size, available_bytes=available_memory.available_bytes())
    threads = planned.job.spec.workers.threads_per_process
    return oversubscription(threads, local_world_size, cores=usable_cores())


def memory_items(
    planned: Planned, *, world_size: int, local_world_size: int
) -> tuple[MemoryItem, ...]:
    """The sum of a rank, at the moment in which the ranks of this machine together need most."""
    return memory_sum(
        planned.plan,
        world_size=world_size,
        windows=window_shape(planned),
        local_ranks=local_world_size,
    )


def needed_memory(items: Iterable[MemoryItem], ranks: int) -> int:
    """What the ranks of this machine, or of one pod, need together; in bytes."""
    return bytes_of_ranks(items, ranks) + ranks * PROCESS_BYTES


def choose_world_size(planned: Planned, *, workers: int | None) -> int:
    """Ranks of a local run: as asked on the command line, else by the manifest, else what fits."""
    asked = planned.job.spec.workers
    if workers is not None:
        if workers < 1:
            raise InvalidInput("--workers", workers, "must be at least 1")
        return workers
    if asked.count is not None:
        return asked.count * asked.processes_per_worker
    return default_world_size(
        planned.plan,
        threads=asked.threads_per_process,
        cores=usable_cores(),
        available_bytes=available_memory.available_bytes(),
        windows=window_shape(planned),
    )


def default_world_size(
    plan: Plan,
    *,
    threads: int,
    cores: int,
    available_bytes: int | None,
    windows: tuple[int, int] | None = None,
) -> int:
    """As many ranks as cores, micro-batches and memory (None: unknown) allow, at least one."""
    most = max(1, cores // threads)
    if plan.micro_batches:
        most = min(most, len(plan.leaves))
    for world_size in range(most, 1, -1):
        items = memory_sum(plan, world_size=world_size, windows=windows, local_ranks=world_size)
        needed = needed_memory(items, world_size)
        if available_bytes is None or needed <= available_bytes:
            return world_size
    return 1


def choose_checkpoint_distance(planned: Planned) -> int:
    """Layers between activation checkpoints; where the job leaves it open, each layer if it fits.

    At most two sets are ever on disk, whatever the distance, so they fit for all layers or none.
    """
    asked = planned.job.spec.checkpoint.every_layers
    if asked:
        return asked
    rest = disk_sum(planned.plan, model_folder=planned.places.model, with_activations=False)
    needed = total_disk_bytes(rest) + 2 * activation_bytes(planned.plan)
    return 1 if needed <= _free_bytes(planned.output) + _left_behind(planned.output) else NEVER


def disk_items(planned: Planned) -> tuple[DiskItem, ...]:
    """What the run will write."""
    return disk_sum(
        planned.plan,
        model_folder=planned.places.model,
        with_activations=choose_checkpoint_distance(planned) < len(planned.plan.layers),
    )


def window_shape(planned: Planned) -> tuple[int, int] | None:
    """Evaluation windows and their length."""
    if planned.windows is None:
        return None
    count, length = planned.windows.shape
    return count, length


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def already_published(planned: Planned) -> bool:
    """Whether the output is there, complete, and of this very plan: then nothing is left to do."""
    if not (planned.output / published.MANIFEST_NAME).is_file():
        return False
    return published.read_manifest(planned.output).plan == planned.plan.digest


def check_places(places: Places) -> None:
    """The output must not hold, nor lie in, what is read: publishing renames whole folders.

    Real paths are compared, since two claims or a link may lead to one place.
    """
    output, model = places.output.resolve(), places.model.resolve()
    if output == model or model in output.parents:
        raise InvalidInput(_OUTPUT, str(places.output), f"must not lie in the model, {model}")
    written = (output, work_path(output), output.with_name(f"{output.name}.rejected"))
    for source in (places.model, places.calibration, places.evaluation):
        if source is None:
            continue
        real = source.resolve()
        if any(folder == real or folder in real.parents for folder in written):
            raise InvalidInput(_OUTPUT, str(places.output), f"must not hold what is read, {source}")


def check_output(planned: Planned) -> None:
    """The output must be free, to be replaced, or already what would be made."""
    output = planned.output
    if os.path.lexists(output):
        if not output.is_dir():
            raise InvalidInput(_OUTPUT, str(output), "must be a folder where it exists")
        replace = planned.job.spec.output.overwrite_policy == "Replace"
        if not replace and not already_published(planned):
            rule = "must not exist yet (overwritePolicy Replace replaces it)"
            raise InvalidInput(_OUTPUT, str(output), rule)
    parent = _existing_parent(output)
    if not parent.is_dir():
        raise InvalidInput(_OUTPUT, str(output), f"must lie in folders, but {parent} is none")
    read_only = bool(os.statvfs(parent).f_flag & os.ST_RDONLY)
    if read_only or not os.access(parent, os.W_OK | os.X_OK):
        cause = "read-only file system" if read_only else "permission denied"
        raise OutputUnwritable(f"{_OUTPUT}: cannot write {output}: {cause} ({parent})")


def check_disk(output: Path, items: Iterable[DiskItem]) -> None:
    """Free space for all that a run writes; what an earlier attempt left counts as there.

    Space may be made without a change of the job, so this may be tried again.
    """
    items = tuple(items)
    needed = total_disk_bytes(items) - _left_behind(output)
    free = _free_bytes(output)
    if needed > free:
        raise OutputUnwritable(
            f"{_OUTPUT}: {output} needs {shown_bytes(needed)} of disk, {shown_bytes(free)} are "
            f"free ({_shown(items)})"
        )


def check_memory(items: Sequence[MemoryItem], ranks: int, *, available_bytes: int | None) -> None:
    """Memory for the ranks of this machine; where the system does not tell, nothing is refused."""
    needed = needed_memory(items, ranks)
    process = [MemoryItem(name="process", num_bytes=PROCESS_BYTES)]
    if available_bytes is not None and needed > available_bytes:
        own = [item for item in items if not item.once_a_pod]
        shared = _shown(item for item in items if item.once_a_pod)
        together = f", and all of them {shared}" if shared else ""
        rule = (
            f"must need at most the {shown_bytes(available_bytes)} of memory that are free, not "
            f"{shown_bytes(needed)}: each rank {_shown([*process, *own])}{together}"
        )
        raise InvalidInput("spec.workers", f"{ranks} ranks on this machine", rule)


def check_processes(ranks: int, *, available_bytes: int | None) -> None:
    """Whether so many processes fit at all: asked before anything is laid out for them."""
    check_memory((), ranks, available_bytes=available_bytes)


def oversubscription(threads: int, ranks: int, *, cores: int) -> tuple[str, ...]:
    """Slow, but not wrong."""
    if threads * ranks <= cores:
        return ()
    return (f"spec.workers: {ranks} ranks of {threads} threads share {cores} cores",)


def _existing_parent(path: Path) -> Path:
    """The nearest folder above `path` that exists."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def _free_bytes(output: Path) -> int:
    stats = os.statvfs(_existing_parent(output))
    return stats.f_bavail * stats.f_frsize


def _left_behind(output: Path) -> int:
    """Bytes in the work folder; a file that vanishes meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(work_path(output)):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _shown(items: Iterable[DiskItem | MemoryItem]) -> str:
    return " + ".join(f"{item.name} {shown_bytes(item.num_bytes)}" for item in items)
