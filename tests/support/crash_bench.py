"""Recipes that crash differently, and runs in this process that crash to order."""

import copy
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import crash_orders
from crash_orders import Event, Order
from quantfleet_api.loading import parse_job
from quantfleet_api.spec import QuantizationJob
from quantfleet_worker.launch import Outcome, run_job

BASE: dict[str, Any] = {
    "model": {"source": {"pvc": {"claimName": "models", "path": "llama"}}},
    "calibration": {
        "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
        "sampleCount": 10,
        "sequenceLength": 32,
    },
    "recipe": {
        "scheme": "W8A8",
        "weights": {"method": "RTN"},
        "propagation": "Quantized",
        "transforms": [{"smoothQuant": {"alpha": "0.5"}}],
    },
    "output": {
        "pvc": {"claimName": "out", "path": "result"},
        "formats": ["CompressedTensors", "Ascend"],
    },
    "evaluation": {
        "source": {"pvc": {"claimName": "data", "path": "eval.jsonl"}},
        "windowCount": 3,
        "windowLength": 32,
    },
}
RECIPES: dict[str, dict[str, Any]] = {
    "static": {},
    "every-3": {"checkpoint": {"everyLayers": 3}},
    "float": {"recipe": {"propagation": "Float"}, "checkpoint": {"everyLayers": 2}},
    "gptq": {
        "recipe": {
            "scheme": "W4A16",
            "weights": {"method": "GPTQ", "groupSize": 32},
            "transforms": [],
        },
        "output": {"formats": ["CompressedTensors"]},
    },
    "ascend-first": {
        "output": {"formats": ["Ascend", "CompressedTensors"]},
        "checkpoint": {"everyLayers": 3},
    },
    "no-data": {
        "calibration": None,
        "evaluation": None,
        "recipe": {"scheme": "W8A8Dynamic", "transforms": []},
    },
    "replace": {"output": {"overwritePolicy": "Replace"}},
    "other-alpha": {"recipe": {"transforms": [{"smoothQuant": {"alpha": "0.75"}}]}},
    "rejected": {"evaluation": {"maxPerplexityRatio": "0.01"}},
}
"""What differs from BASE."""

NUM_LAYERS = 6  # embedding, four decoders, head


@dataclass(kw_only=True)
class Run:
    """One `run_job` and how its ranks left."""

    outcome: Outcome
    codes: dict[int, int]  # exit code by rank, as the system gave it
    ended: float  # monotonic seconds
    events: list[Event]
    hit: Event | None

    @property
    def solved(self) -> list[int]:
        """Layers that this attempt began to solve, as rank 0 saw it or the rank that was first."""
        words = [event.name.split() for event in self.events]
        return sorted({int(word[1]) for word in words if word[0] == "solving"})


@dataclass(kw_only=True)
class Bench:
    """Folders of the claims, and runs over them."""

    root: Path
    models: Path
    orders: Path
    gangs: list[dict[int, int]] = field(default_factory=list)

    @property
    def volumes(self) -> dict[str, Path]:
        """What `--volume` would say."""
        return {"models": self.models, "data": self.models, "out": self.root / "out"}

    @property
    def output(self) -> Path:
        """What is published."""
        return self.root / "out" / "result"

    @property
    def work(self) -> Path:
        """The work folder."""
        return self.root / "out" / "result.work"

    def run(
        self,
        recipe: str,
        workers: int,
        order: Order | None = None,
        *,
        discard_journal: bool = False,
        on_progress: Any = lambda progress: None,
    ) -> Run:
        """Run a job in this process (the ranks are others), with at most one crash."""
        crash_orders.give_order(self.orders, order)
        self.gangs.clear()
        outcome = run_job(
            job_of(recipe),
            volumes=self.volumes,
            workers=workers,
            discard_journal=discard_journal,
            on_progress=on_progress,
        )
        return Run(
            outcome=outcome,
            codes=self.gangs[-1] if self.gangs else {},
            ended=monotonic(),
            events=crash_orders.read_events(self.orders),
            hit=crash_orders.read_hit(self.orders),
        )

    def second_run(self, recipe: str, workers: int) -> Outcome:
        """A run beside another, whose orders and events stay."""
        return run_job(job_of(recipe), volumes=self.volumes, workers=workers)

    def run_with(self, recipe: str, workers: int, order: Order, act: Callable[[], None]) -> Run:
        """As `run`, for an order that holds a rank: `act` while it is held, then let it go."""

        def wait_and_act() -> None:
            pause = threading.Event()
            while not ended.is_set():
                if crash_orders.read_hit(self.orders) is not None:
                    try:
                        act()
                    finally:
                        (self.orders / "go").touch()
                    return
                pause.wait(0.01)

        ended = threading.Event()
        thread = threading.Thread(target=wait_and_act)
        crash_orders.give_order(self.orders, None)
        thread.start()
        try:
            return self.run(recipe, workers, order)
        finally:
            ended.set()
            thread.join()

    def leftovers(self) -> list[str]:
        """What lies beside output, report and summary; nothing after success."""
        expected = {"result", "result.report.json", "result.report.md"}
        names = {path.name for path in (self.root / "out").iterdir()}
        return sorted(names - expected)


def manifest_of(recipe: str) -> dict[str, Any]:
    """The manifest of a recipe, as YAML would give it."""
    spec = copy.deepcopy(BASE)
    for part, changes in RECIPES[recipe].items():
        if changes is None:
            del spec[part]
        else:
            spec[part] = {**spec.get(part, {}), **changes}
    return {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": "tiny"},
        "spec": spec,
    }


def job_of(recipe: str) -> QuantizationJob:
    """The parsed manifest of a recipe."""
    return parse_job(manifest_of(recipe))


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Undisturbed:
    """Digests and events of undisturbed runs."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._found: dict[str, dict[str, str]] = {}
        self._events: dict[tuple[str, int], list[Event]] = {}

    def digests(self, recipe: str) -> dict[str, str]:
        """Of every published file."""
        name = "static" if recipe in ("replace", "every-3") else recipe
        if name not in self._found:
            self._run(name, 1)
        return self._found[name]

    def events(self, recipe: str, workers: int) -> list[Event]:
        """Everything that ranks passed by."""
        if (recipe, workers) not in self._events:
            self._run(recipe, workers)
        return self._events[recipe, workers]

    def _run(self, recipe: str, workers: int) -> None:
        root = self._bench.root / f"{recipe}-{workers}"
        (root / "out").mkdir(parents=True)
        bench = Bench(root=root, models=self._bench.models, orders=self._bench.orders)
        run = bench.run(recipe, workers)
        assert run.outcome.exit_code == 0, run.outcome
        found = digests(bench.output)
        assert self._found.setdefault(recipe, found) == found, "the number of ranks changed bytes"
        self._events[recipe, workers] = run.events
