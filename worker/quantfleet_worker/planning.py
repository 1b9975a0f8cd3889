"""From manifest, model and data to the plan. Reads headers and texts, never a weight.

Called by the launcher (and by `quantfleet plan`) before any rank starts; everything here is a
function of the files and the manifest, so every machine makes the same plan.

What is wrong is refused in this order: manifest, architecture, checkpoint, targets, formats, data.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quantfleet_api.errors import InvalidInput
from quantfleet_api.loading import resolve_volume
from quantfleet_api.plan import LayerPlan, LinearScheme, MicroBatch, Plan, SampleCount, SchemeName
from quantfleet_api.recipe import linear_scheme, smooth_quant_of
from quantfleet_api.spec import (
    JobSpec,
    OutputClaim,
    PathInClaim,
    QuantizationJob,
    Recipe,
    resolve,
)
from quantfleet_worker.accounting import FIELD, SourceModel, account
from quantfleet_worker.data import (
    CalibrationData,
    evaluation_windows,
    leaves,
    load_texts,
    prepare_calibration,
)
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.json_text import json_object
from quantfleet_worker.layer_plans import Schemes, fused_units, layer_plans
from quantfleet_worker.models.family import Family
from quantfleet_worker.models.registry import family_of
from quantfleet_worker.scheme_choice import choose_schemes
from quantfleet_worker.site_statistics import max_leaves, reservoir_rows
from quantfleet_worker.source import CONFIG, Checkpoint
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
    checkpoint: Checkpoint
    output: Path
    tokens: NDArray[np.int32]  # all samples in order
    offsets: NDArray[np.int64]  # [samples + 1]; sample i is tokens[offsets[i] : offsets[i + 1]]
    windows: NDArray[np.int64] | None  # [count, length] token ids of the evaluation
    warnings: tuple[str, ...]  # what is not as asked for (law L11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Local paths of everything the manifest names."""

    model: Path
    output: Path
    calibration: Path | None
    evaluation: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Structure:
    """The part of a plan that needs no data."""

    checkpoint: Checkpoint
    model: SourceModel
    layers: tuple[LayerPlan, ...]
    warnings: tuple[str, ...]


def make_plan(
    job: QuantizationJob, *, volumes: Mapping[str, Path], chunk_bytes: int = CHUNK_BYTES
) -> Planned:
    """The plan of a job, given the local folder of each claim; InvalidInput where it cannot be.

    1. Find the local paths. 2. Recognise the architecture. 3. Account for the checkpoint's tensors.
    4. Choose schemes. 5. Ask the formats. 6. Read the data.
    """
    job = resolve(job)
    places = resolve_places(job.spec, volumes)
    structure = _plan_layers(job.spec, places.model)
    observed = any(site.statistics for layer in structure.layers for site in layer.sites)
    data = _read_calibration(job.spec, places, structure) if observed else None
    plan = _assemble(job.spec, structure, data, chunk_bytes)
    return Planned(
        plan=plan,
        job=job,
        checkpoint=structure.checkpoint,
        output=places.output,
        tokens=np.empty(0, dtype=np.int32) if data is None else data.tokens,
        offsets=np.zeros(1, dtype=np.int64) if data is None else data.offsets,
        windows=_read_evaluation(job.spec, places, structure),
        warnings=(*structure.warnings, *_lost_samples(plan.samples)),
    )


def resolve_places(spec: JobSpec, volumes: Mapping[str, Path]) -> Places:
    """Local paths; InvalidInput names the whole field whose claim is not mapped."""

    def local(pvc: PathInClaim | OutputClaim, field: str) -> Path:
        try:
            return resolve_volume(pvc, volumes)
        except InvalidInput as error:
            raise InvalidInput(f"{field}.{error.field}", error.value, error.rule) from None

    calibration, evaluation = spec.calibration, spec.evaluation
    return Places(
        model=local(spec.model.source.pvc, "spec.model.source.pvc"),
        calibration=None
        if calibration is None
        else local(calibration.source.pvc, "spec.calibration.source.pvc"),
        output=local(spec.output.pvc, "spec.output.pvc"),
        evaluation=None
        if evaluation is None
        else local(evaluation.source.pvc, "spec.evaluation.source.pvc"),
    )


def recipe_digest(spec: JobSpec, *, with_data: bool) -> str:
    """SHA-256 of what the manifest says about the result's bytes.

    Left out: where the texts lie (their content has a digest of its own) and the policy for
    warnings, which decides whether there is a result and not which.
    """
    parts = {
        "recipe": spec.recipe.model_dump(mode="json", exclude={"warnings"}),
        "calibration": spec.calibration.model_dump(mode="json", exclude={"source"})
        if with_data and spec.calibration is not None
        else None,
        "formats": list(spec.output.formats),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plan_layers(spec: JobSpec, folder: Path) -> _Structure:
    family = _family(folder)
    checkpoint = Checkpoint.open(folder)
    model = account(family, checkpoint.config, checkpoint.tensors)
    recipe = spec.recipe
    choice = choose_schemes(recipe, units=fused_units(model), embedding=family.embedding)
    _check_something_quantized(recipe, choice.schemes)
    _check_group_sizes(model, choice.schemes)
    _check_formats(spec, model, choice.schemes)
    smooth = smooth_quant_of(recipe)
    layers = layer_plans(
        model,
        choice.schemes,
        alpha=None if smooth is None else smooth.alpha,
        formats=spec.output.formats,
    )
    return _Structure(checkpoint=checkpoint, model=model, layers=layers, warnings=choice.warnings)


def _family(folder: Path) -> Family:
    """The architecture, before anything but config.json is opened."""
    path = folder / CONFIG
    if not path.is_file():
        Checkpoint.open(folder)  # says what is wrong with the folder
    return family_of(json_object(path.read_bytes(), field=f"{FIELD}: {CONFIG}"))


def _check_something_quantized(recipe: Recipe, schemes: Schemes) -> None:
    if not any(schemes.values()):
        rule = "must leave at least one linear to quantize (overrides and ignore take all)"
        raise InvalidInput("spec.recipe", f"scheme {recipe.scheme}", rule)


def _check_group_sizes(model: SourceModel, schemes: Schemes) -> None:
    for name, scheme in schemes.items():
        size = 0 if scheme is None else scheme.weights.group_size
        weight = model.tensors.get(f"{name}.weight", model.embedding_weight)
        if size and weight.shape[1] % size:
            rule = f"must divide the {weight.shape[1]} input features of {name}"
            raise InvalidInput("spec.recipe.weights.groupSize", size, rule)


def _check_formats(spec: JobSpec, model: SourceModel, schemes: Schemes) -> None:
    used: dict[LinearScheme, str] = {}
    for name, scheme in schemes.items():
        if scheme is not None:
            used.setdefault(scheme, name)
    for index, format_name in enumerate(spec.output.formats):
        for scheme, linear in used.items():
            reason = FORMATS[format_name].refusal(scheme, model_dtype=model.dtype)
            if reason is not None:
                rule = (
                    f"must have what {linear} needs, {_shown(scheme)}: {reason}; "
                    f"there is {_what_exists(spec.recipe, model)}"
                )
                raise InvalidInput(f"spec.output.formats[{index}]", format_name, rule)


def _shown(scheme: LinearScheme) -> str:
    symmetry = "symmetric" if scheme.weights.symmetric else "asymmetric"
    group = f", group size {scheme.weights.group_size}" if scheme.weights.group_size else ""
    return f"{scheme.name} with {symmetry} weights{group}"


def _what_exists(recipe: Recipe, model: SourceModel) -> str:
    """The matrix of formats and schemes, each scheme with its own defaults."""
    plain = Recipe(
        scheme=recipe.scheme,
        weights=recipe.weights.model_copy(update={"group_size": None, "symmetric": True}),
    )
    names: tuple[SchemeName, ...] = get_args(SchemeName)
    rows = [
        (
            name,
            [
                scheme
                for scheme in names
                if FORMATS[name].refusal(linear_scheme(plain, scheme), model_dtype=model.dtype)
                is None
            ],
        )
        for name in FORMATS
    ]
    return "; ".join(f"{name} with {', '.join(schemes)}" for name, schemes in rows)


def _read_calibration(spec: JobSpec, places: Places, structure: _Structure) -> CalibrationData:
    calibration, path = spec.calibration, places.calibration
    assert calibration is not None, "the manifest's rules ask for data where a recipe needs it"
    assert path is not None
    _check_length(
        "spec.calibration.sequenceLength", calibration.sequence_length, structure.checkpoint
    )
    texts = load_texts(path, text_field=calibration.text_field)
    return prepare_calibration(
        texts,
        load_tokenizer(places.model),
        sample_count=calibration.sample_count,
        sequence_length=calibration.sequence_length,
        vocab_size=structure.model.embedding_weight.shape[0],
        min_tokens=calibration.min_tokens,
        concatenate=calibration.concatenate,
        batch_size=calibration.batch_size,
        shuffle=calibration.shuffle,
        seed=calibration.seed,
    )


def _read_evaluation(
    spec: JobSpec, places: Places, structure: _Structure
) -> NDArray[np.int64] | None:
    evaluation, path = spec.evaluation, places.evaluation
    if evaluation is None or path is None:
        return None
    _check_length("spec.evaluation.windowLength", evaluation.window_length, structure.checkpoint)
    windows: Tensor = evaluation_windows(
        load_texts(path, field="spec.evaluation.source"),
        load_tokenizer(places.model),
        window_count=evaluation.window_count,
        window_length=evaluation.window_length,
        vocab_size=structure.model.embedding_weight.shape[0],
    )
    return np.asarray(windows.numpy(), dtype=np.int64)


def _check_length(field: str, length: int, checkpoint: Checkpoint) -> None:
    longest = checkpoint.config.get("max_position_embeddings")
    if isinstance(longest, int) and length > longest:
        raise InvalidInput(field, length, f"must be at most the model's {longest} positions")


def _assemble(
    spec: JobSpec, structure: _Structure, data: CalibrationData | None, chunk_bytes: int
) -> Plan:
    model, layers = structure.model, structure.layers
    batches: Sequence[MicroBatch] = () if data is None else data.micro_batches
    propagation = spec.recipe.propagation
    assert propagation is not None, "resolved"
    return Plan(
        version=PLAN_VERSION,
        engine=ENGINE,
        model_digest=structure.checkpoint.digest,
        data_digest="" if data is None else data.digest,
        recipe_digest=recipe_digest(spec, with_data=data is not None),
        family=model.family.name,
        model_dtype=model.dtype,
        tied_embeddings=model.tied,
        formats=spec.output.formats,
        propagation=propagation,
        samples=_no_samples() if data is None else data.counts,
        micro_batches=tuple(batches),
        leaves=leaves(len(batches), max_leaves(layers)) if batches else (),
        reservoir_rows=reservoir_rows(layers),
        chunk_bytes=chunk_bytes,
        layers=layers,
        dropped=model.dropped,
        copied_files=structure.checkpoint.side_files,
    )


def _no_samples() -> SampleCount:
    return SampleCount(
        requested=0,
        available=0,
        used=0,
        dropped_short=0,
        truncated=0,
        tokens_used=0,
        tokens_truncated=0,
        tokens_dropped=0,
    )


def _lost_samples(counts: SampleCount) -> tuple[str, ...]:
    """Law L2: fewer samples than asked for are named, never made up for."""
    if counts.used == counts.requested:
        return ()
    return (
        f"spec.calibration.sampleCount: {counts.requested} samples asked for, {counts.used} used: "
        f"{counts.available} texts, of which {counts.dropped_short} are too short",
    )
