"""The report beside the published folder: what was done, from what, how well, how long.

`put_summary` runs on every rank, `build` and `write` on rank 0.
"""

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from quantfleet_worker import device as devices
from quantfleet_worker.clock import PHASES
from quantfleet_worker.engine import Engine
from quantfleet_worker.journal import Journal
from quantfleet_worker.report_text import summary_text
from quantfleet_worker.verify import Perplexities

PACKAGES = ("quantfleet", "torch", "transformers", "safetensors", "numpy", "pydantic")


def put_summary(engine: Engine, *, memory_at_start: int) -> None:
    """Tell rank 0 what this rank did."""
    engine.clock.seconds["write"] += engine.writer.seconds
    traffic = engine.exchange.traffic
    summary = {
        "secondsByPhase": engine.clock.seconds,
        "bytesSent": traffic.num_bytes,
        "transfers": traffic.num_transfers,
        "exchangePhases": traffic.num_phases,
        "mostPhasesOfALayer": traffic.most_phases_of_layer,
        "pod": engine.pod,
        "bytesRead": engine.reader.bytes_read,
        "bytesReadToEvaluate": engine.evaluation_bytes,
        "microBatches": len(engine.layout.micro_batches_of(engine.rank)),
        "peakMemoryBytes": devices.peak_memory_bytes(),
        "peakMemoryAboveStartBytes": devices.peak_memory_bytes() - memory_at_start,
        "peakDeviceMemoryBytes": devices.peak_device_memory_bytes(engine.device),
    }
    engine.exchange.put(f"summary/{engine.rank}", json.dumps(summary))


def build(
    engine: Engine,
    journal: Journal,
    files: Mapping[str, tuple[str, int]],
    perplexities: Perplexities | None,
    missed: str | None,
) -> dict[str, Any]:
    """The report's content; the launcher adds what only it knows (wall time)."""
    summaries = [
        json.loads(engine.exchange.get(f"summary/{rank}"))
        for rank in range(engine.layout.world_size)
    ]
    return {
        "output": str(engine.folder.output),
        "gateMissed": missed,
        **_identity(engine, journal),
        "worldSize": engine.layout.world_size,
        "threads": engine.threads,
        "attempts": engine.folder.attempt,
        "seconds": monotonic() - engine.started,
        "evaluation": None if perplexities is None else _evaluation(perplexities),
        "warnings": list(all_warnings(engine, journal)),
        "size": _sizes(engine, files),
        "bytesReadByPod": _by_pod(summaries, "bytesRead"),
        "bytesReadToEvaluateByPod": _by_pod(summaries, "bytesReadToEvaluate"),
        "secondsByPhase": {
            phase: max(summary["secondsByPhase"][phase] for summary in summaries)
            for phase in PHASES
        },
        "ranks": summaries,
        "layers": [layer.model_dump(mode="json") for layer in journal.layers],
    }


def _by_pod(summaries: Sequence[Mapping[str, Any]], what: str) -> list[int]:
    """Bytes of weights that each pod took from storage in this attempt."""
    total = [0] * (1 + max(summary["pod"] for summary in summaries))
    for summary in summaries:
        total[summary["pod"]] += summary[what]
    return total


def all_warnings(engine: Engine, journal: Journal) -> tuple[str, ...]:
    """Everything that law L11 counts."""
    return (
        *engine.planning_warnings,
        *journal.warnings,
        *(warning for layer in journal.layers for warning in layer.warnings),
    )


def _identity(engine: Engine, journal: Journal) -> dict[str, Any]:
    """What was made from what, by what."""
    plan = engine.plan
    return {
        "planDigest": plan.digest,
        "modelDigest": plan.model_digest,
        "dataDigest": plan.data_digest,
        "recipeDigest": plan.recipe_digest,
        "recipe": engine.job.spec.recipe.model_dump(mode="json", by_alias=True),
        "formats": list(plan.formats),
        "propagation": plan.propagation,
        "samples": plan.samples.model_dump(mode="json"),
        "numerics": journal.numerics,
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
    }


def _evaluation(found: Perplexities) -> dict[str, Any]:
    return {
        "floatPerplexity": found.float_model,
        "quantizedPerplexity": found.quantized,
        "ratio": found.ratio,
        "windows": found.num_windows,
        "windowLength": found.window_length,
        "windowLosses": found.window_losses,  # mean loss of a token: [float, quantized]
    }


def _sizes(engine: Engine, files: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    source = sum(
        os.path.getsize(engine.checkpoint.folder / name) for name in engine.checkpoint.weight_files
    )
    output = {
        name: sum(
            files[engine.format_path(name, file.name)][1]
            for layer in engine.plan.layers
            for file in layer.files[name]
        )
        for name in engine.plan.formats
    }
    tensors = sum(tensor.num_bytes for tensor in engine.checkpoint.tensors.values())
    return {"sourceBytes": source, "sourceTensorBytes": tensors, "outputBytes": output}


def report_path(target: Path) -> Path:
    """`<output>.report.json`."""
    return target.with_name(target.name + ".report.json")


def write(engine: Engine, content: Mapping[str, Any], target: Path) -> None:
    """Leave the report and its readable summary beside the output."""
    path = report_path(target)
    text = json.dumps(_strict(content), indent=1, allow_nan=False)
    engine.folder.write_bytes(path, (text + "\n").encode())
    engine.folder.write_bytes(path.with_suffix(".md"), summary_text(content).encode())


def _strict(value: Any) -> Any:
    """The same without numbers that JSON does not have: a broken model's perplexity is null."""
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
