"""Perplexity of SmolLM2 under a list of recipes, each quantized by the engine with two ranks.

    python -m benchmarks.quality [--full] [--only GLOB] [--results FILE]   # a JSON line a recipe
    python -m benchmarks.quality --table FILE                              # markdown of such lines

Setting: the first 64 articles of calib.jsonl (each of at least 256 tokens) cut to 256; 8 windows of
512 tokens spread over the test split; no BOS; float32. The reference is the demo's model, which was
dequantized from 4 bits (Q4_1), so ratios say what our quantization adds to that.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic
from typing import Any

from quantfleet_api.spec import QuantizationJob
from quantfleet_worker.launch import run_job

REPOSITORY = Path(__file__).resolve().parent.parent
PROPAGATIONS = ("Float", "Quantized")
NUM_RANKS = 2
STUDENT_97_5 = 2.365  # of 7 degrees of freedom: half width of 95 %, in standard errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recipe to measure; `core` ones are what the project promises figures for."""

    name: str
    recipe: Mapping[str, Any]
    core: bool = False


def cases() -> Iterator[Case]:
    """Every recipe; those that observe once with each propagation."""
    rounded: dict[str, Any] = {"method": "RTN"}
    yield Case(name="w8a8-dynamic", recipe=_recipe("W8A8Dynamic", rounded), core=True)
    yield Case(name="w8a16", recipe=_recipe("W8A16", rounded))
    for symmetric in (True, False):
        weights = rounded | {"groupSize": 64, "symmetric": symmetric}
        kind = "sym" if symmetric else "asym"
        yield Case(name=f"w4a16-g64-{kind}", recipe=_recipe("W4A16", weights), core=True)
    for name, recipe, core in _observing():
        for propagation in PROPAGATIONS:
            yield Case(
                name=f"{name}/{propagation}",
                recipe=recipe | {"propagation": propagation},
                core=core,
            )


def _observing() -> Iterator[tuple[str, dict[str, Any], bool]]:
    for ordered in (False, True):
        for symmetric in (True, False):
            weights = _gptq(64, ordered) | {"symmetric": symmetric}
            name = f"w4a16-g64-{'sym' if symmetric else 'asym'}-gptq{'-order' if ordered else ''}"
            yield name, _recipe("W4A16", weights), True
    observers = ("MinMax", "99.99", "99.9", "MSE")
    for alpha, kind, observed in (
        (None, "asym", observers),
        (None, "sym", observers),
        ("0.5", "asym", observers),
        ("0.5", "sym", ("MSE",)),
        ("0.65", "asym", ("MSE",)),
        ("0.8", "asym", ("MinMax", "MSE")),
        ("0.9", "asym", ("MSE",)),
    ):
        for observer in observed:
            yield _static(alpha, kind, observer)
    dynamic = _recipe("W8A8Dynamic", {"method": "RTN"}, alpha="0.5")
    yield "smooth0.5-w8a8-dynamic", dynamic, False
    yield "w8a8-dynamic-gptq", _recipe("W8A8Dynamic", _gptq(0, True)), False
    yield "w8a16-gptq", _recipe("W8A16", _gptq(0, True)), False


def _static(alpha: str | None, kind: str, observer: str) -> tuple[str, dict[str, Any], bool]:
    activations: dict[str, Any] = {"symmetric": kind == "sym", "observer": observer}
    if observer.startswith("99"):
        activations |= {"observer": "Percentile", "percentile": observer}
    recipe = _recipe("W8A8", {"method": "RTN"}, alpha=alpha) | {"activations": activations}
    core = kind == "asym" and alpha in (None, "0.5", "0.8") and observer in ("MinMax", "MSE")
    smooth = "" if alpha is None else f"smooth{alpha}-"
    return f"{smooth}w8a8-{kind}-{observer.lower()}", recipe, core


def _gptq(group_size: int, ordered: bool) -> dict[str, Any]:
    return {"method": "GPTQ", "groupSize": group_size, "gptq": {"activationOrder": ordered}}


def _recipe(scheme: str, weights: dict[str, Any], *, alpha: str | None = None) -> dict[str, Any]:
    transforms = [] if alpha is None else [{"smoothQuant": {"alpha": alpha}}]
    return {"scheme": scheme, "weights": weights, "transforms": transforms}


def job_of(case: Case) -> QuantizationJob:
    """The manifest of a case: model, samples and windows are the same for all."""
    spec: dict[str, Any] = {
        "model": {"source": {"pvc": {"claimName": "models", "path": "smollm2"}}},
        "calibration": {
            "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
            "sampleCount": 64,
            "sequenceLength": 256,
            "minTokens": 256,
        },
        "recipe": case.recipe,
        "output": {
            "pvc": {"claimName": "out", "path": "result"},
            "formats": ["CompressedTensors"],
        },
        "evaluation": {
            "source": {"pvc": {"claimName": "data", "path": "eval.jsonl"}},
            "windowCount": 8,
            "windowLength": 512,
        },
    }
    if "propagation" not in case.recipe:
        del spec["calibration"]
    return QuantizationJob.model_validate(
        {
            "apiVersion": "quantfleet.io/v1alpha1",
            "kind": "QuantizationJob",
            "metadata": {"name": "quality"},
            "spec": spec,
        }
    )


def measure(case: Case, demo: Path) -> dict[str, Any]:
    """Quantize the whole model; the figures of the report, ready to be printed."""
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        volumes = {"models": demo / "models", "data": demo / "data", "out": Path(folder)}
        started = monotonic()
        outcome = run_job(job_of(case), volumes=volumes, workers=NUM_RANKS)
        seconds = monotonic() - started
    if outcome.report is None:
        raise RuntimeError(f"{case.name}: {outcome.cause}; {outcome.hint}")
    found = outcome.report["evaluation"]
    return {
        "recipe": case.name,
        "float": round(found["floatPerplexity"], 4),
        "quantized": round(found["quantizedPerplexity"], 4),
        "ratio": round(found["ratio"], 4),
        "seconds": round(seconds, 1),
        "losses": [round(right, 6) for _, right in found["windowLosses"]],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: perplexities by recipe, and the two propagations of a recipe compared."""
    lines = ["| recipe | perplexity | over float |", "|---|---|---|"]
    plain = [row for row in rows if "/" not in row["recipe"]]
    lines += [f"| {row['recipe']} | {row['quantized']:.3f} | {row['ratio']:.4f} |" for row in plain]
    lines += ["", "| recipe | Float | Quantized | Quantized over Float | 95 % interval |"]
    lines += ["|---|---|---|---|---|"]
    found = {row["recipe"]: row for row in rows}
    for row in rows:
        name, _, propagation = row["recipe"].partition("/")
        other = found.get(f"{name}/Quantized")
        if propagation == "Float" and other is not None:
            change, low, high = paired(row["losses"], other["losses"])
            lines.append(
                f"| {name} | {row['ratio']:.4f} | {other['ratio']:.4f} "
                f"| {change:.4f} | {low:.4f} to {high:.4f} |"
            )
    return "\n".join(lines)


def paired(before: list[float], after: list[float]) -> tuple[float, float, float]:
    """Ratio of two perplexities on the same 8 windows, and its 95 % interval.

    The interval is Student's over the windows' differences of the mean loss: it tells whether other
    windows of this text would agree, nothing about other texts or models.
    """
    differences = [right - left for left, right in zip(before, after, strict=True)]
    assert len(differences) == 8, "the quantile is that of 8 windows"
    mean = statistics.mean(differences)
    half = STUDENT_97_5 * statistics.stdev(differences) / math.sqrt(len(differences))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("QUANTFLEET_CACHE") or REPOSITORY / ".cache")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality")
    parser.add_argument("--full", action="store_true", help="every recipe, not only the core ones")
    parser.add_argument("--only", metavar="GLOB", help="recipes whose name matches, of all")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append the lines here too")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a table of such a file")
    parser.add_argument("--demo", type=Path, default=cache / "demo", help="the demo's data")
    parser.add_argument("--list", action="store_true", help="print the recipes' names only")
    return parser.parse_args()


def main() -> None:
    """Command line; see the module's docstring."""
    options = _arguments()
    if options.table is not None:
        print(table([json.loads(line) for line in options.table.read_text().splitlines()]))
        return
    for case in cases():
        wanted = fnmatch(case.name, options.only) if options.only else options.full or case.core
        if not wanted:
            continue
        if options.list:
            print(case.name)
            continue
        line = json.dumps(measure(case, options.demo))
        print(line, flush=True)
        if options.results is not None:
            with options.results.open("a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
