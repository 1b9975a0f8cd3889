"""From manifest, model and data to the plan. Reads headers and texts, never a weight.

Called by the launcher (and by `quantfleet plan`) before any rank starts; everything here is a
function of the files and the manifest, so every machine makes the same plan.

What is wrong is refused in this order: manifest, architecture, checkpoint, targets, formats, data.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantfleet_api.plan import Plan, SampleCount
from quantfleet_api.spec import JobSpec, QuantizationJob, resolve
from quantfleet_worker.data import (
    CalibrationData,
    evaluation_windows,
    leaves,
    load_texts,
    prepare_calibration,
)
from quantfleet_worker.places import Places, resolve_places
from quantfleet_worker.plan_checks import check_length
from quantfleet_worker.site_statistics import max_leaves, reservoir_rows
from quantfleet_worker.source import Checkpoint
from quantfleet_worker.structure import Source, Structure, open_source, plan_structure
from quantfleet_worker.tokenizer import load_tokenizer

PLAN_VERSION = 1
ENGINE = "1"
"""Version of the numerics; raise it whenever the same plan would give other bytes."""

CHUNK_BYTES = 256 << 20
"""Most bytes of one transfer (law L4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and what the ranks need beside it."""

    plan: Plan
    job: QuantizationJob  # resolved
    places: Places
    checkpoint: Checkpoint
    tokens: NDArray[np.int32]  # all samples in order
    offsets: NDArray[np.int64]  # [samples + 1]; sample i is tokens[offsets[i] : offsets[i + 1]]
    windows: NDArray[np.int64] | None  # [count, length] token ids of the evaluation
    warnings: tuple[str, ...]  # what is not as asked for (law L11)

    @property
    def output(self) -> Path:
        """The folder to publish."""
        return self.places.output


def make_plan(
    job: QuantizationJob, *, volumes: Mapping[str, Path], chunk_bytes: int = CHUNK_BYTES
) -> Planned:
    """The plan of a job, given the local folder of each claim; InvalidInput where it cannot be.

    1. Find the local paths. 2. Recognise the architecture and account for the checkpoint's tensors.
    3. Choose schemes, ask the formats, lay out the layers. 4. Read the texts that are needed.
    """
    job = resolve(job)
    places = resolve_places(job.spec, volumes)  # 1
    source = open_source(places.model)  # 2
    structure = plan_structure(job.spec, source)  # 3
    return finish_plan(job, places, source, structure, chunk_bytes=chunk_bytes)  # 4


def finish_plan(
    job: QuantizationJob,
    places: Places,
    source: Source,
    structure: Structure,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Planned:
    """Read the texts that a resolved job needs, and put the plan together."""
    data = read_calibration(job.spec, places, source) if structure.observed else None
    windows = read_evaluation(job.spec, places, source)
    plan = assemble(job.spec, source, structure, data, chunk_bytes=chunk_bytes)
    return Planned(
        plan=plan,
        job=job,
        places=places,
        checkpoint=source.checkpoint,
        tokens=np.empty(0, dtype=np.int32) if data is None else data.tokens,
        offsets=np.zeros(1, dtype=np.int64) if data is None else data.offsets,
        windows=windows,
        warnings=(*structure.warnings, *_lost_samples(plan.samples)),
    )


def read_calibration(spec: JobSpec, places: Places, source: Source) -> CalibrationData:
    """The calibration samples of a spec that needs them."""
    calibration, path = spec.calibration, places.calibration
    assert calibration is not None, "the manifest's rules ask for data where a recipe needs it"
    assert path is not None
    field = "spec.calibration.sequenceLength"
    check_length(field, calibration.sequence_length, source.checkpoint.config)
    texts = load_texts(path, text_field=calibration.text_field)
    return prepare_calibration(
        texts,
        load_tokenizer(places.model),
        sample_count=calibration.sample_count,
        sequence_length=calibration.sequence_length,
        vocab_size=source.model.embedding_weight.shape[0],
        min_tokens=calibration.min_tokens,
        concatenate=calibration.concatenate,
        batch_size=calibration.batch_size,
        shuffle=calibration.shuffle,
        seed=calibration.seed,
    )


def read_evaluation(spec: JobSpec, places: Places, source: Source) -> NDArray[np.int64] | None:
    """Token ids [count, length] of the evaluation's windows, None where there is none."""
    evaluation, path = spec.evaluation, places.evaluation
    if evaluation is None or path is None:
        return None
    field = "spec.evaluation.windowLength"
    check_length(field, evaluation.window_length, source.checkpoint.config)
    windows = evaluation_windows(
        load_texts(path, field="spec.evaluation.source"),
        load_tokenizer(places.model),
        window_count=evaluation.window_count,
        window_length=evaluation.window_length,
        vocab_size=source.model.embedding_weight.shape[0],
    )
    return np.asarray(windows.numpy(), dtype=np.int64)


def assemble(
    spec: JobSpec,
    source: Source,
    structure: Structure,
    data: CalibrationData | None,
    *,
    chunk_bytes: int,
) -> Plan:
    """The plan; `data` is None where nothing is computed from activations."""
    model, layers = source.model, structure.layers
    batches = () if data is None else data.micro_batches
    propagation = spec.recipe.propagation
    assert propagation is not None, "resolved"
    return Plan(
        version=PLAN_VERSION,
        engine=ENGINE,
        model_digest=source.checkpoint.digest,
        data_digest="" if data is None else data.digest,
        recipe_digest=recipe_digest(spec, with_data=data is not None),
        family=model.family.name,
        model_dtype=model.dtype,
        tied_embeddings=model.tied,
        formats=spec.output.formats,
        propagation=propagation,
        samples=SampleCount(**dict.fromkeys(SampleCount.model_fields, 0))
        if data is None
        else data.counts,
        micro_batches=batches,
        leaves=leaves(len(batches), max_leaves(layers)) if batches else (),
        reservoir_rows=reservoir_rows(layers),
        chunk_bytes=chunk_bytes,
        layers=layers,
        dropped=model.dropped,
        copied_files=source.checkpoint.side_files,
    )


def recipe_digest(spec: JobSpec, *, with_data: bool) -> str:
    """SHA-256 of what the manifest says about the result's bytes.

    Left out: where the texts lie (their content has a digest of its own) and the policy for
    warnings, which decides whether there is a result and not which.
    """
    calibration = spec.calibration
    parts = {
        "recipe": spec.recipe.model_dump(mode="json", exclude={"warnings"}),
        "calibration": calibration.model_dump(mode="json", exclude={"source"})
        if with_data and calibration is not None
        else None,
        "formats": list(spec.output.formats),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _lost_samples(counts: SampleCount) -> tuple[str, ...]:
    """Law L2: fewer samples than asked for are named, never made up for."""
    if counts.used == counts.requested:
        return ()
    return (
        f"spec.calibration.sampleCount: {counts.requested} samples asked for, {counts.used} used: "
        f"{counts.available} texts, of which {counts.dropped_short} are too short",
    )
