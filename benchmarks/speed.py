"""How much longer calibrating takes than a plain forward of the same tokens, and how it scales.

All figures are ratios within one round on one machine; the median of the rounds is printed. The
engine's time runs from the first layer to the commit of the last (no start-up, no evaluation).
"""

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import one_run, plain_forward
from quantfleet_api.loading import parse_job
from quantfleet_api.progress import Progress
from quantfleet_worker.launch import Outcome, run_job

SMOOTH = [{"smoothQuant": {"alpha": "0.5"}}]
STATIC = {"symmetric": False, "observer": "MinMax"}
RTN = {"method": "RTN"}
RECIPES: dict[str, dict[str, Any]] = {
    "w8a8-quantized": {
        "scheme": "W8A8", "weights": RTN, "activations": STATIC, "propagation": "Quantized",
    },
    "w8a8-float": {
        "scheme": "W8A8", "weights": RTN, "activations": STATIC, "propagation": "Float",
    },
    "smooth-w8a8-quantized": {
        "scheme": "W8A8", "weights": RTN, "activations": STATIC, "propagation": "Quantized",
        "transforms": SMOOTH,
    },
    "smooth-w8a8-float": {
        "scheme": "W8A8", "weights": RTN, "activations": STATIC, "propagation": "Float",
        "transforms": SMOOTH,
    },
    "w8a8-mse-quantized": {
        "scheme": "W8A8", "weights": RTN, "activations": STATIC | {"observer": "MSE"},
        "propagation": "Quantized",
    },
    "w4a16-g64-gptq-quantized": {
        "scheme": "W4A16", "weights": {"method": "GPTQ", "groupSize": 64},
        "propagation": "Quantized",
    },
}  # fmt: skip
LIMITS = {"w8a8-quantized": 2.2, "w8a8-float": 1.3}
"""What this project promises, times the decoder layers' plain forward."""


def run(demo: Path, *, rounds: int, layers: int, samples: int) -> None:
    """Print a JSON line a figure."""
    model = cut_model(demo, layers)
    tokens = calibration_tokens(demo, model, samples)
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="quantfleet-bench-") as folder:
        for number in range(rounds):
            found.append(_round(demo, model, tokens, samples, Path(folder) / str(number)))
            shown = {name: round(value, 2) for name, value in found[-1].items()}
            print(json.dumps({"round": number, **shown}), flush=True)
    report(found, tokens=sum(map(len, tokens)), layers=layers)


def cut_model(demo: Path, layers: int) -> Path:
    """The demo's model, or its first layers."""
    whole = demo / "models" / "smollm2"
    if not layers:
        return whole
    cut = demo / "models" / f"smollm2-cut{layers}"
    if not cut.is_dir():
        from smollm2_checkpoint import cut_checkpoint

        cut.mkdir()
        cut_checkpoint(whole, cut, layers=layers)
    return cut


def calibration_tokens(demo: Path, model: Path, samples: int) -> list[list[int]]:
    """Token ids of the samples that the engine uses."""
    from quantfleet_worker.texts import load_texts
    from quantfleet_worker.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    texts = load_texts(demo / "data" / "calib.jsonl")[:samples]
    return [tokenizer(text, add_special_tokens=False)["input_ids"][:256] for text in texts]


def _round(
    demo: Path, model: Path, tokens: list[list[int]], samples: int, folder: Path
) -> dict[str, float]:
    """One round: both yardsticks and all recipes with two ranks, the first also with one."""
    times: dict[str, float] = {}
    times |= _scaling(demo, model, tokens, samples)
    for name, recipe in RECIPES.items():
        seconds, report = engine_seconds(demo, model, recipe, samples, 2, folder / name)
        times[f"{name}-2"] = seconds
        ranks = report["ranks"]
        times[f"{name}-phases"] = max(rank["mostPhasesOfALayer"] for rank in ranks)
        times[f"{name}-read"] = report["secondsByPhase"]["read"]
        times[f"{name}-write"] = report["secondsByPhase"]["write"]
    for written in (True, False):
        times[f"w8a8-quantized-{'' if written else 'un'}written-2"] = one_run.seconds(
            demo, model, samples=samples, ranks=2, cores=2, written=written
        )
    return times


def _scaling(demo: Path, model: Path, tokens: list[list[int]], samples: int) -> dict[str, float]:
    """One and two ranks, a core each: then two have twice the hardware of one, and no more.

    A lone rank with two cores writes files on the second one while it computes on the first.
    """
    times: dict[str, float] = {}
    for ranks, cores in ((1, 1), (2, 2), (1, 2)):
        name = f"{ranks}-on-{cores}"
        plain = plain_forward.seconds(model, tokens, processes=ranks, dtype="float32", cores=cores)
        times |= {f"plain-{kind}-{name}": seconds for kind, seconds in plain.items()}
        times[f"w8a8-quantized-{name}"] = one_run.seconds(
            demo, model, samples=samples, ranks=ranks, cores=cores
        )
    times |= {f"plain-{kind}-2": times[f"plain-{kind}-2-on-2"] for kind in ("whole", "decoder")}
    return times


def manifest(recipe: Mapping[str, Any], model: Path, samples: int) -> dict[str, Any]:
    """The job without evaluation: its time is not calibration's."""

    def pvc(claim: str, path: str) -> dict[str, Any]:
        return {"pvc": {"claimName": claim, "path": path}}

    return {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"source": pvc("models", model.name)},
            "calibration": {
                "source": pvc("data", "calib.jsonl"),
                "sampleCount": samples,
                "sequenceLength": 256,
            },
            "recipe": dict(recipe),
            "output": {**pvc("out", "quantized"), "formats": ["CompressedTensors"]},
        },
    }


def engine_seconds(
    demo: Path, model: Path, recipe: Mapping[str, Any], samples: int, ranks: int, out: Path
) -> tuple[float, dict[str, Any]]:
    """Seconds from the first layer to the commit of the last, and the report."""
    seconds, outcome = seconds_to_verify(demo, model, recipe, samples, ranks, out)
    if outcome.exit_code or outcome.report is None:
        raise SystemExit(f"error: {outcome.cause}")
    return seconds, outcome.report


def seconds_to_verify(
    demo: Path, model: Path, recipe: Mapping[str, Any], samples: int, ranks: int, out: Path
) -> tuple[float, Outcome]:
    """Seconds from the first layer until all are committed, and what became of the run."""
    out.mkdir(parents=True)
    began: list[float] = []
    ended: list[float] = []

    def watch(progress: Progress) -> None:
        if progress.stage == "Calibrating":
            began.append(monotonic())
        elif progress.stage == "Verifying" and progress.rank == 0:
            ended.append(monotonic())

    outcome = run_job(
        parse_job(manifest(recipe, model, samples)),
        volumes={"models": model.parent, "data": demo / "data", "out": out},
        workers=ranks,
        on_progress=watch,
    )
    if not ended:
        raise SystemExit(f"error: {outcome.cause}")
    return ended[0] - began[0], outcome


def report(rounds: Sequence[Mapping[str, float]], *, tokens: int, layers: int) -> None:
    """Medians of the ratios of each round."""

    def median(top: str, bottom: str) -> float:
        return statistics.median(found[top] / found[bottom] for found in rounds)

    for name in RECIPES:
        _print(
            f"{name} over plain forward, 2 ranks",
            decoder=median(f"{name}-2", "plain-decoder-2"),
            whole=median(f"{name}-2", "plain-whole-2"),
            limit=LIMITS.get(name),
        )
        _print(f"{name} exchange phases a layer", most=max(r[f"{name}-phases"] for r in rounds))
    for kind in ("quantized", "float"):
        _print(
            f"SmoothQuant over without, {kind}",
            ratio=median(f"smooth-w8a8-{kind}-2", f"w8a8-{kind}-2"),
            limit=1.1,
        )
    for alone in ("1-on-1", "1-on-2"):
        plain = median(f"plain-decoder-{alone}", "plain-decoder-2-on-2")
        ours = median(f"w8a8-quantized-{alone}", "w8a8-quantized-2-on-2")
        _print(
            f"speed-up of 2 ranks on 2 cores over {alone.replace('-on-', ' on ')}",
            plain=plain,
            engine=ours,
            share=ours / plain,
            limit=0.97 if alone == "1-on-1" else None,
        )
    _print(
        "w8a8-quantized over the same without writing",
        ratio=median("w8a8-quantized-written-2", "w8a8-quantized-unwritten-2"),
        limit=1.05,
    )
    _print("physical floor: plain forward, one read, one write", **_floor(rounds))
    _print("setting", tokens=tokens, layers=layers, rounds=len(rounds))
    for name in ("plain-decoder-2", "plain-whole-2", "w8a8-quantized-2"):
        _print(f"seconds, {name}", all=[round(found[name], 2) for found in rounds])


def _floor(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds below which nothing can go, and the engine's over them (each layer runs once)."""
    floors = [
        found["plain-decoder-2"] + found["w8a8-float-read"] + found["w8a8-float-write"]
        for found in rounds
    ]
    over = [found["w8a8-float-2"] / floor for found, floor in zip(rounds, floors, strict=True)]
    return {"seconds": statistics.median(floors), "w8a8_float_over_it": statistics.median(over)}


def _print(figure: str, **values: Any) -> None:
    shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"figure": figure, **{k: v for k, v in shown.items() if v is not None}}))
