"""The memory sum of a rank: every item is what it says, and the largest moment wins."""

from typing import Any

import pytest
import torch

from quantfleet_worker import memory_items as items
from quantfleet_worker.memory import bytes_of_ranks, memory_sum, total_bytes
from quantfleet_worker.schedule import make_layout
from quantfleet_worker.statistics.second_moment import SecondMoment
from quantfleet_worker.statistics.tree import CanonicalSum
from tiny_models import make_tiny_model, tiny_texts, write_jsonl

ROUNDED = {"scheme": "W8A16", "weights": {"method": "RTN"}}
GPTQ = {"scheme": "W4A16", "weights": {"method": "GPTQ", "groupSize": 32}}


def sums(plan: Any, world_size: int, **windows: Any) -> dict[str, int]:
    return {x.name: x.num_bytes for x in memory_sum(plan, world_size=world_size, **windows)}


def test_a_copying_recipe_needs_weights_and_results_only(bench: Any) -> None:
    plan = bench.plan(recipe=ROUNDED).plan
    found = sums(plan, 1)
    assert set(found) == {
        "weights of model.layers.0",
        "weights of the next layer",
        "solving",
        "libraries, once they are used",
        "results",
    }
    assert found["weights of model.layers.0"] == sum(t.num_bytes for t in plan.layers[1].source)
    assert found["weights of the next layer"] == found["weights of model.layers.0"]


def test_more_ranks_hold_fewer_micro_batches(bench: Any) -> None:
    plan = bench.plan().plan
    per_sample = [max(batch.lengths) * 64 * 4 for batch in plan.micro_batches]
    for world_size, samples in ((1, 6), (2, 3), (3, 2), (6, 1), (9, 1)):
        layout = make_layout(plan, world_size)
        bounds = layout.micro_batch_ranges
        expected = max(sum(per_sample[start:stop]) for start, stop in bounds)
        assert items.carry(plan, layout) == expected
        assert max(stop - start for start, stop in bounds) == samples


def test_pads_are_counted(bench: Any) -> None:
    texts = [text for words in (5, 20, 9) for text in tiny_texts(2, words=words)]
    write_jsonl(bench.root / "data" / "calib.jsonl", texts)
    plan = bench.plan(calibration__batchSize=6).plan
    (batch,) = plan.micro_batches
    assert len(set(batch.lengths)) > 1, "the texts differ in length"
    assert items.token_ids(plan, make_layout(plan, 1)) == 8 * 6 * max(batch.lengths)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_parked_nodes_are_those_of_the_tree(bench: Any, world_size: int) -> None:
    """Counted on the real statistic, leaf by leaf."""
    plan = bench.plan(recipe=GPTQ, calibration__sampleCount=11).plan
    layout, site = make_layout(plan, world_size), plan.layers[1].sites[0]
    assert len(plan.leaves) == 11
    most = 0
    for start, stop in layout.leaf_ranges:
        tree = CanonicalSum(11)
        moment = SecondMoment(site.features, 11)
        for leaf in range(start, stop):
            tree.add(leaf, moment_leaf(site.features))
            most = max(most, len(tree.nodes))
        assert moment.rows == 0
    triangle = 4 * 64 * 65 // 2
    one_site = plan.layers[1].model_copy(update={"sites": (site,)})
    expected = 4 * 64 * 64 + (most + 1) * triangle + 8 * 64
    assert items.statistics(plan, layout, one_site) == expected


def moment_leaf(features: int) -> torch.Tensor:
    return torch.zeros(features * (features + 1) // 2)


def test_one_rank_exchanges_nothing(bench: Any) -> None:
    plan = bench.plan().plan
    assert items.exchange_buffers(plan, make_layout(plan, 1), plan.layers[1]) == 0
    assert items.exchange_buffers(plan, make_layout(plan, 2), plan.layers[1]) > 0


def test_codes_that_are_written_as_they_are_count_once(bench: Any) -> None:
    int8 = bench.plan().plan
    packed = bench.plan(recipe=ROUNDED).plan
    codes = sum(x.out_features * x.in_features for s in int8.layers[1].sites for x in s.linears)
    assert items.encoded(int8, int8.layers[1]) < codes / 4
    assert items.encoded(packed, packed.layers[1]) > codes
    assert codes < items.quantized(int8.layers[1]) < 1.2 * codes


def test_the_sum_is_of_the_largest_layer(bench: Any) -> None:
    """A quantized head of a large vocabulary outweighs the small decoder layers."""
    make_tiny_model(bench.volumes["models"] / "wide", "llama", vocab_size=4096)
    assert "weights of lm_head" in sums(
        bench.plan("wide", recipe={**ROUNDED, "ignore": []}).plan, 1
    )
    assert "weights of lm_head" not in sums(bench.plan("wide", recipe=ROUNDED).plan, 1)


def test_evaluation_counts_where_it_needs_most(bench: Any) -> None:
    make_tiny_model(bench.volumes["models"] / "wide", "llama", vocab_size=4096)
    plan = bench.plan("wide", recipe=ROUNDED).plan
    found = sums(plan, 2, windows=(5, 700))
    assert found["logits of a window"] == 2 * 700 * 4096 * 4
    assert found["hidden states of the rank's windows"] == 2 * 3 * 700 * 64 * 4
    assert found["embedding in float32"] == 4096 * 64 * 4
    assert "logits of a window" not in sums(plan, 2)


def test_items_are_sorted_and_never_empty(bench: Any) -> None:
    moment = memory_sum(bench.plan("qwen3").plan, world_size=2)
    sizes = [item.num_bytes for item in moment]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    assert total_bytes(moment) == sum(sizes)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 9])
def test_all_ranks_together_send_a_reservoir_once(bench: Any, world_size: int) -> None:
    plan = bench.plan(recipe__activations={"observer": "MSE"}, calibration__sampleCount=11).plan
    rows = sum(sum(batch.lengths) for batch in plan.micro_batches)
    layout = make_layout(plan, world_size)
    assert sum(layout.kept_rows) == min(plan.reservoir_rows, rows)


def test_ranks_of_a_pod_hold_weights_once(bench: Any) -> None:
    plan = bench.plan().plan
    moment = memory_sum(plan, world_size=4, local_ranks=4)
    shared = {item.name: item.num_bytes for item in moment if item.once_a_pod}
    assert shared
    assert all(name.startswith("weights of ") for name in shared)
    alone = total_bytes(moment) - sum(shared.values())
    assert bytes_of_ranks(moment, 4) == 4 * alone + sum(shared.values())
    assert bytes_of_ranks(moment, 1) == total_bytes(moment)
