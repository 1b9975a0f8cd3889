"""`quantfleet plan`: everything that can be known, and why a job would be refused."""

import json
from typing import Any

import pytest

from quantfleet_worker.describe import describe
from quantfleet_worker.layer_tables import runs_of
from quantfleet_worker.preflight import PROCESS_BYTES
from quantfleet_worker.schedule import layer_layout, make_layout
from quantfleet_worker.site_statistics import layer_passes
from quantfleet_worker.traffic import layer_traffic
from quantfleet_worker.wire import merged_bytes, partial_bytes

EVALUATION = {
    "source": {"pvc": {"claimName": "data", "path": "eval.jsonl"}},
    "windowCount": 4,
    "windowLength": 32,
}


@pytest.fixture(autouse=True)
def _numerics_as_before() -> Any:
    """Describing sets the switches that ranks set; other tests should not see them."""
    import torch

    deterministic = torch.are_deterministic_algorithms_enabled()
    precision = torch.get_float32_matmul_precision()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(precision)


def described(bench: Any, workers: int | None = None, **changes: Any) -> dict[str, Any]:
    return describe(bench.job(**changes), volumes=bench.volumes, workers=workers)


def test_a_good_job_is_described_in_full(bench: Any) -> None:
    found = described(bench, 2, evaluation=EVALUATION)
    assert found["refused"] is None
    assert found["planDigest"] == bench.plan().plan.digest
    assert found["ranks"] == 2
    assert found["model"]["family"] == "llama"
    assert found["model"]["decoderLayers"] == 2
    assert found["data"]["samplesUsed"] == 6
    assert found["data"]["windows"] == 4
    assert found["recipe"]["propagation"] == "Quantized"
    assert found["numericsIdentity"]["deterministic"] == "True"
    assert found["files"] == [
        {
            "format": "CompressedTensors",
            "files": 4,
            "first": "model-00001-of-00004.safetensors",
            "last": "model-00004-of-00004.safetensors",
            "bytes": found["files"][0]["bytes"],
        }
    ]
    for table in ("memoryOfARank", "disk"):
        *summands, last = found[table]
        assert last == {"what": "sum", "bytes": sum(row["bytes"] for row in summands)}


def test_the_memory_of_a_pod_is_that_of_its_ranks_with_weights_once(bench: Any) -> None:
    pods = bench.job(workers={"count": 2, "processesPerWorker": 2})
    one, two = described(bench, 1), describe(pods, volumes=bench.volumes)
    assert two["ranks"] == 4
    rank = two["memoryOfARank"][-1]["bytes"] + PROCESS_BYTES
    assert rank < two["memoryOfAPodBytes"] < 2 * rank
    alone = one["memoryOfARank"][-1]["bytes"] + PROCESS_BYTES
    assert one["memoryOfAPodBytes"] == alone


def test_a_description_is_plain_json(bench: Any) -> None:
    found = described(bench, 2, output__formats=["CompressedTensors", "Ascend"])
    assert json.loads(json.dumps(found)) == found


def test_layers_that_are_alike_share_a_row(bench: Any) -> None:
    sites = described(bench, 1)["sites"]
    assert [row["layers"] for row in sites] == ["model.layers.0-1"] * 4 + ["lm_head"]
    assert sites[0]["linears"] == "q_proj 64x64, k_proj 32x64, v_proj 32x64"
    assert sites[0]["scheme"] == "W8A8 RTN, asymmetric MinMax input"
    assert sites[-1]["scheme"] == "float"
    assert sites[-1]["statistics"] == "none"
    override = [{"targets": ["*.layers.1.mlp.down_proj"], "scheme": "W8A8Dynamic"}]
    apart = described(bench, 1, recipe__overrides=override)["sites"]
    assert [row["layers"] for row in apart][:5] == ["model.layers.0"] * 4 + ["model.layers.1"]


def test_runs_keep_the_order_of_layers(bench: Any) -> None:
    layers = bench.plan().plan.layers
    runs = runs_of(layers, lambda layer: layer.kind)
    assert [layer for run in runs for layer in run] == list(layers)
    assert [len(run) for run in runs] == [1, 2, 1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1, 2, 1, 0)),
        ({"recipe__propagation": "Float"}, (1, 1, 1, 0)),
        ({"recipe__ignore": []}, (1, 2, 2, 1)),
        ({"recipe__ignore": ["lm_head", "*.layers.0.*"]}, (1, 1, 1, 0)),
        ({"recipe__ignore": ["lm_head", "*.layers.1.*"]}, (1, 1, 0, 0)),
        ({"recipe": {"scheme": "W8A8Dynamic", "weights": {"method": "RTN"}}}, (0, 0, 0, 0)),
    ],
    ids=["quantized", "float", "head", "first-float", "last-float", "no-data"],
)
def test_layers_are_passed_no_more_than_needed(
    bench: Any, changes: Any, expected: tuple[int, ...]
) -> None:
    plan = bench.plan(**changes).plan
    assert layer_passes(plan.layers, propagation=plan.propagation) == expected


def test_exchanged_bytes_are_those_of_the_wire(bench: Any) -> None:
    plan = bench.plan("qwen2").plan
    layout, layer = make_layout(plan, 3), plan.layers[1]
    own = layer_layout(layer, 3)
    moved = layer_traffic(plan, layout, layer)
    table = partial_bytes(plan, layout, layer, own)
    assert moved.partials == sum(map(sum, table)) - sum(table[rank][rank] for rank in range(3))
    merged = sum(map(sum, merged_bytes(plan, layout, layer, own)))
    solution = sum(4 + 1 + 4 * 8 for _ in layer.sites)
    assert moved.solutions == merged + 2 * solution
    codes = sum(x.out_features * (x.in_features + 4) for s in layer.sites for x in s.linears)
    assert moved.results == 2 * (codes + 8 * len(own.tasks))
    assert moved.phases == 3


def test_one_rank_sends_nothing(bench: Any) -> None:
    plan = bench.plan().plan
    moved = layer_traffic(plan, make_layout(plan, 1), plan.layers[1])
    assert (moved.partials, moved.solutions, moved.results) == (0, 0, 0)


def test_the_layout_covers_everything_once(bench: Any) -> None:
    found = described(bench, 4)
    layout, plan = found["layout"], bench.plan().plan
    assert [row["rank"] for row in layout] == [0, 1, 2, 3]
    assert sum(row["tokens"] for row in layout) == plan.samples.tokens_used
    assert sum(row["files"] for row in layout) == 4
    assert layout[0]["leaves"] == "0-1"
    more = described(bench, 9)["layout"]
    assert more[-1]["microBatches"] == "none"


def nowhere(claim: str, path: str = "no") -> dict[str, Any]:
    return {"pvc": {"claimName": claim, "path": path}}


W4 = {"scheme": "W4A16", "weights": {"method": "RTN"}}

REFUSED = {
    "claim": ({"output__pvc": nowhere("no")["pvc"]}, "spec.output", "recipe", "model"),
    "model": ({"model__source": nowhere("models")}, "spec.model", "numericsIdentity", "model"),
    "target": ({"recipe__ignore": ["no"]}, "spec.recipe.ignore[0]", "model", "sites"),
    "group size": ({"recipe": W4}, "spec.recipe.weights.groupSize", "model", "sites"),
    "data": (
        {"calibration__source": nowhere("data", "no.txt")},
        "spec.calibration",
        "files",
        "planDigest",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=list(REFUSED))
def test_a_refused_job_is_described_as_far_as_it_goes(bench: Any, case: Any) -> None:
    changes, field, present, absent = case
    found = described(bench, 2, **changes)
    assert found["refused"].startswith(field)
    assert "\n" not in found["refused"]
    assert present in found
    assert absent not in found


def test_what_preflight_refuses_is_described_in_full(bench: Any) -> None:
    (bench.root / "out" / "result").mkdir()
    found = described(bench, 2)
    assert found["refused"].startswith("spec.output.pvc.path: must not exist yet")
    assert {"planDigest", "layout", "memoryOfARank", "disk", "layers"} <= found.keys()


def test_describing_writes_nothing(bench: Any) -> None:
    before = sorted(path for path in bench.root.rglob("*"))
    described(bench, 2)
    assert sorted(path for path in bench.root.rglob("*")) == before
