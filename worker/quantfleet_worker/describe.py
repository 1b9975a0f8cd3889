"""What a run would do and need, and why it would be refused, for `quantfleet plan`.

Called by the command line. Goes through the stages of planning in their order and keeps what each
gives, so a job that is refused late is still described up to there. Nothing is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantfleet_api.errors import QuantFleetError
from quantfleet_api.plan import LayerPlan, Plan
from quantfleet_api.spec import QuantizationJob, resolve
from quantfleet_worker import available_memory, device
from quantfleet_worker.disk import DiskItem
from quantfleet_worker.formats.safetensors_file import file_size
from quantfleet_worker.layer_tables import Row, layer_rows, site_rows
from quantfleet_worker.memory import MemoryItem, memory_sum
from quantfleet_worker.places import resolve_places
from quantfleet_worker.planning import Planned, finish_plan
from quantfleet_worker.preflight import (
    already_published,
    check_processes,
    choose_checkpoint_distance,
    choose_world_size,
    disk_items,
    memory_items,
    needed_memory,
    preflight,
    window_shape,
)
from quantfleet_worker.schedule import Layout, layer_layout, make_layout
from quantfleet_worker.structure import Source, open_source, plan_structure


def describe(
    job: QuantizationJob, *, volumes: Mapping[str, Path], workers: int | None = None
) -> dict[str, Any]:
    """A description of plain JSON values; its `refused` is None or the reason in one line."""
    description: dict[str, Any] = {}
    refused = None
    try:
        for part in _parts(resolve(job), volumes, workers):
            description |= part
    except QuantFleetError as error:
        refused = str(error)
    return description | {"refused": refused}


def _parts(
    job: QuantizationJob, volumes: Mapping[str, Path], workers: int | None
) -> Iterator[dict[str, Any]]:
    yield {"job": job.metadata.name, "recipe": _recipe(job)}
    places = resolve_places(job.spec, volumes)
    yield {"output": str(places.output)}
    yield {"numericsIdentity": _identity(job)}
    source = open_source(places.model)
    yield {"model": _model(source)}
    structure = plan_structure(job.spec, source)
    yield {"sites": site_rows(structure.layers), "warnings": list(structure.warnings)}
    yield {"files": _files(structure.layers)}
    planned = finish_plan(job, places, source, structure)
    yield {"planDigest": planned.plan.digest, "warnings": list(planned.warnings)}
    yield {"data": _data(planned)}
    world_size = choose_world_size(planned, workers=workers)
    check_processes(world_size, available_bytes=available_memory.available_bytes())
    asked = job.spec.workers
    in_a_pod = world_size if workers or not asked.count else asked.processes_per_worker
    layout = make_layout(planned.plan, world_size)
    yield {
        "ranks": world_size,
        "layers": layer_rows(planned.plan, layout),
        "layout": _layout(planned.plan, layout),
        "memoryOfARank": _sum(
            memory_sum(planned.plan, world_size=world_size, windows=window_shape(planned))
        ),
        "memoryOfAPodBytes": needed_memory(
            memory_items(planned, world_size=world_size, local_world_size=in_a_pod), in_a_pod
        ),
        "disk": _sum(disk_items(planned)),
        "checkpointEveryLayers": choose_checkpoint_distance(planned),
        "alreadyPublished": already_published(planned),
    }
    notes = preflight(planned, world_size=world_size, local_world_size=world_size)
    yield {"warnings": [*planned.warnings, *notes]}


def _recipe(job: QuantizationJob) -> dict[str, Any]:
    """The resolved recipe under the manifest's own names."""
    dumped: dict[str, Any] = job.spec.recipe.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    return dumped


def _identity(job: QuantizationJob) -> dict[str, str]:
    """That of the ranks, which set the same switches before they compute."""
    workers = job.spec.workers
    device.configure_numerics(workers.threads_per_process)
    here = device.select_device(workers.backend, 0)
    return device.numerics_identity(here, workers.threads_per_process)


def _model(source: Source) -> dict[str, Any]:
    model = source.model
    return {
        "folder": str(source.checkpoint.folder),
        "family": model.family.name,
        "dtype": model.dtype,
        "tiedEmbeddings": model.tied,
        "decoderLayers": model.num_layers,
        "hiddenSize": model.hidden_size,
        "vocabulary": model.embedding_weight.shape[0],
        "weightBytes": sum(tensor.num_bytes for tensor in model.tensors.values()),
        "digest": source.checkpoint.digest,
        "droppedTensors": list(model.dropped),
        "copiedFiles": list(source.checkpoint.side_files),
    }


def _files(layers: Sequence[LayerPlan]) -> list[Row]:
    """The tensor files of each format; their names are counted from first to last."""
    rows = []
    for name in layers[0].files:
        files = [file for layer in layers for file in layer.files[name]]
        rows.append(
            {
                "format": name,
                "files": len(files),
                "first": files[0].name,
                "last": files[-1].name,
                "bytes": sum(file_size(file) for file in files),
            }
        )
    return rows


def _data(planned: Planned) -> dict[str, Any]:
    """Samples and tokens (law L2), and how they are grouped."""
    plan = planned.plan
    shape = window_shape(planned)
    evaluation = {} if shape is None else {"windows": shape[0], "windowTokens": shape[1]}
    if not plan.micro_batches:
        return {"calibration": "none is needed", **evaluation}
    counts = plan.samples
    return {
        "samplesRequested": counts.requested,
        "samplesAvailable": counts.available,
        "samplesUsed": counts.used,
        "samplesDroppedAsShort": counts.dropped_short,
        "samplesTruncated": counts.truncated,
        "tokensUsed": counts.tokens_used,
        "tokensTruncated": counts.tokens_truncated,
        "tokensDropped": counts.tokens_dropped,
        "microBatches": len(plan.micro_batches),
        "leaves": len(plan.leaves),
        "reservoirRows": plan.reservoir_rows,
        "digest": plan.data_digest,
        **evaluation,
    }


def _layout(plan: Plan, layout: Layout) -> list[Row]:
    """Each rank's part of the data, and of the tasks and files of all layers together."""
    layers = [layer_layout(layer, layout.world_size) for layer in plan.layers]
    return [
        {
            "rank": rank,
            "leaves": _shown_range(layout.leaves_of(rank)),
            "microBatches": _shown_range(layout.micro_batches_of(rank)),
            "tokens": sum(
                sum(plan.micro_batches[index].lengths) for index in layout.micro_batches_of(rank)
            ),
            "tasks": sum(len(layer.tasks_of(rank)) for layer in layers),
            "files": sum(
                writer == rank
                for layer in layers
                for writers in layer.writers.values()
                for writer in writers
            ),
        }
        for rank in range(layout.world_size)
    ]


def _shown_range(indices: range) -> str:
    return f"{indices.start}-{indices.stop - 1}" if len(indices) else "none"


def _sum(items: Sequence[MemoryItem | DiskItem]) -> list[Row]:
    """The summands and, last, their sum."""
    rows = [{"what": item.name, "bytes": item.num_bytes} for item in items]
    return [*rows, {"what": "sum", "bytes": sum(item.num_bytes for item in items)}]
