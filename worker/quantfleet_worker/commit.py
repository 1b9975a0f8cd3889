"""Step 8 of a layer: its files, its activations, and the journal entry that makes them count.

`submit` hands everything to the rank's writer thread. Each rank writes what the layout gives it and
tells rank 0 by a record; rank 0 commits when it has all records, and tells everyone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from torch import Tensor

from quantfleet_api.errors import Interrupted
from quantfleet_api.plan import LayerPlan
from quantfleet_worker import assembly
from quantfleet_worker.activations import plain_file, write_activations
from quantfleet_worker.engine import Engine
from quantfleet_worker.formats import FORMATS, safetensors_file
from quantfleet_worker.journal import (
    Checkpoint,
    FileRecord,
    LayerRecord,
    LinearReport,
    SiteReport,
    read_journal,
    write_journal,
)
from quantfleet_worker.plan_facts import advances
from quantfleet_worker.schedule import LayerLayout
from quantfleet_worker.schemes import QuantizedLinear
from quantfleet_worker.solve import SiteSolution, measured_by

STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All that is known of a layer when its files can be written."""

    floats: Mapping[str, Tensor]
    source: Mapping[str, Tensor]  # empty where nothing after the solving needs it
    quantized: Mapping[str, QuantizedLinear]
    encoded: Mapping[str, Tensor]  # in the first format
    sidecar: Mapping[str, Tensor]  # what the first format loses
    errors: Mapping[str, tuple[float, float]]  # squared error and size of each linear's output
    solutions: Mapping[int, SiteSolution]
    notes: tuple[str, ...]  # of this rank's tasks


def submit(engine: Engine, layer: LayerPlan, own: LayerLayout, finished: Finished) -> None:
    """Queue the writing of a layer; the carry is kept as it is now."""
    carry = dict(engine.carry) if checkpoint_due(engine, layer) else None
    started = engine.layer_started

    def job() -> None:
        files = _write_files(engine, layer, own, finished)
        activations = {} if carry is None else _write_activations(engine, layer, carry)
        record = {
            "files": {name: found.model_dump() for name, found in files.items()},
            "activations": activations,
            "hashes": _hashes(engine, layer),
            "notes": finished.notes,
        }
        engine.exchange.put(f"done/{layer.index}/{engine.rank}", json.dumps(record))
        if engine.rank == 0:
            _commit(engine, layer, finished, started)
        elif engine.exchange.last_word(f"committed/{layer.index}", rank=0) in (None, STOPPED):
            raise Interrupted("a peer stopped before the layer was finished")

    engine.writer.submit(layer.index, job)


def stop_submitting(engine: Engine, next_layer: int) -> None:
    """Tell the others that this rank will not finish `next_layer`; then finish what is queued."""
    engine.exchange.put(f"done/{next_layer}/{engine.rank}", STOPPED)
    if engine.rank == 0:  # a peer may have finished it and wait for its commit
        engine.exchange.put(f"committed/{next_layer}", STOPPED)
    try:
        engine.writer.close()
    except Interrupted:
        pass  # the layer that a peer had not finished


def checkpoint_due(engine: Engine, layer: LayerPlan) -> bool:
    """Whether the activations after this layer are kept (the embedding's are cheap to make)."""
    return (
        layer.kind == "decoder"
        and advances(engine.plan, layer)
        and layer.index % engine.checkpoint_every == 0
    )


def _write_files(
    engine: Engine, layer: LayerPlan, own: LayerLayout, finished: Finished
) -> dict[str, FileRecord]:
    records: dict[str, FileRecord] = {}
    several = len(engine.plan.formats) > 1
    for number, name in enumerate(engine.plan.formats):
        if engine.rank not in own.writers[name]:
            continue
        format = FORMATS[name]
        encoded = finished.encoded
        if number > 0:
            encoded = assembly.encoded_tensors(
                format, layer, finished.quantized, engine.plan.model_dtype
            )
        tensors = {**finished.floats, **encoded}
        tensors |= {copy: finished.source[of] for copy, of in layer.copies.items()}
        folder = engine.folder.format_folder(format.folder, several=several)
        for file, writer in zip(layer.files[name], own.writers[name], strict=True):
            if writer == engine.rank:
                with engine.folder.new_file(folder / file.name) as out:
                    sha256, size = safetensors_file.write(out, file, tensors)
                records[f"out/{engine.format_path(name, file.name)}"] = FileRecord(
                    sha256=sha256, num_bytes=size
                )
    if engine.rank == own.writers[engine.plan.formats[0]][0]:
        records |= _write_sidecar(engine, layer, finished)
    return records


def _write_sidecar(engine: Engine, layer: LayerPlan, finished: Finished) -> dict[str, FileRecord]:
    tensors = finished.sidecar
    if not tensors:
        return {}
    path = engine.folder.sidecar(layer.index)
    with engine.folder.new_file(path) as out:
        sha256, size = safetensors_file.write(out, plain_file(path.name, tensors), tensors)
    return {f"sidecar/{path.name}": FileRecord(sha256=sha256, num_bytes=size)}


def _write_activations(
    engine: Engine, layer: LayerPlan, carry: Mapping[int, Tensor]
) -> dict[str, int]:
    own = engine.layout.micro_batches_of(engine.rank)
    return write_activations(engine.folder, layer.index, carry, own)


def _hashes(engine: Engine, layer: LayerPlan) -> dict[str, str]:
    names = [tensor.name for tensor in layer.source]
    return {name: engine.reader.hashes[name] for name in names if name in engine.reader.hashes}


def _commit(engine: Engine, layer: LayerPlan, finished: Finished, started: float) -> None:
    """Rank 0: the journal takes the layer over once every rank has written its part."""
    key = f"committed/{layer.index}"
    records = [
        engine.exchange.last_word(f"done/{layer.index}/{rank}", rank=rank)
        for rank in range(engine.layout.world_size)
    ]
    if STOPPED in records or None in records:
        engine.exchange.put(key, STOPPED)
        raise Interrupted("a peer stopped before the layer was finished")
    parts = [json.loads(record) for record in records if record is not None]
    journal = read_journal(engine.folder)
    assert journal is not None, "the journal begins before the first layer"
    assert len(journal.layers) == layer.index, "layers are committed in order"
    before = journal.checkpoint
    checkpoint = before
    if checkpoint_due(engine, layer):
        files = {name: size for part in parts for name, size in part["activations"].items()}
        checkpoint = Checkpoint(layer=layer.index, files=files)
    told = {
        "seconds": monotonic() - started,
        "repeated": engine.begun_before == layer.index,
    }
    entry = _entry(layer, finished, parts).model_copy(update=told)
    changes = {
        "attempt": engine.folder.attempt,
        "layers": (*journal.layers, entry),
        "checkpoint": checkpoint,
    }
    write_journal(engine.folder, journal.model_copy(update=changes))
    if before is not None and before is not checkpoint:
        engine.folder.remove(engine.folder.carry_folder(before.layer))
    engine.exchange.put(key, "yes")
    engine.committed([entry])


def _entry(layer: LayerPlan, finished: Finished, parts: Sequence[dict[str, Any]]) -> LayerRecord:
    sites = _site_reports(layer, finished)
    notes = list(dict.fromkeys(note for part in parts for note in part["notes"]))
    notes += [
        f"{site.name}: {site.nonfinite} values that are not finite were left out"
        for site in sites
        if site.nonfinite
    ]
    linears = _linear_reports(layer, finished)
    notes += [
        f"{linear.name}: its error is beyond float32 and not reported"
        for linear in linears
        if linear.relative_error is None
    ]
    return LayerRecord(
        index=layer.index,
        name=layer.name,
        files={k: FileRecord(**v) for part in parts for k, v in part["files"].items()},
        source_sha256={k: v for part in parts for k, v in part["hashes"].items()},
        linears=linears,
        sites=sites,
        warnings=tuple(notes),
    )


def _linear_reports(layer: LayerPlan, finished: Finished) -> tuple[LinearReport, ...]:
    reports = []
    for site in layer.sites:
        for linear in site.linears:
            if linear.scheme is None:
                continue
            error, reference = finished.errors[linear.name]
            quantized = finished.quantized[linear.name]
            scale, zero = quantized.input_scale, quantized.input_zero_point
            reports.append(
                LinearReport(
                    name=linear.name,
                    scheme=linear.scheme.name,
                    relative_error=(error / reference) ** 0.5 if reference > 0 else 0.0,
                    measured_by=measured_by(site),
                    input_scale=None if scale is None else float(scale),
                    input_zero_point=None if zero is None else int(zero),
                )
            )
    return tuple(reports)


def _site_reports(layer: LayerPlan, finished: Finished) -> tuple[SiteReport, ...]:
    reports = []
    for index, site in enumerate(layer.sites):
        counts = finished.solutions[index].counts
        if counts is not None:
            rows, nonfinite, dead, clipped = (int(count) for count in counts)
            reports.append(
                SiteReport(
                    name=site.name,
                    rows=rows,
                    nonfinite=nonfinite,
                    dead_channels=dead,
                    clipped_channels=clipped,
                    smoothed=finished.solutions[index].factors is not None,
                )
            )
    return tuple(reports)
