"""The recipe, then overrides in their order, then ignore, all on fused units."""

from typing import Any

from quantfleet_api.plan import Plan

DOWN, QUERY = "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"


def schemes(plan: Plan) -> dict[str, str | None]:
    """Name of each linear's scheme."""
    return {
        linear.name: linear.scheme and linear.scheme.name
        for layer in plan.layers
        for site in layer.sites
        for linear in site.linears
    }


def override(scheme: str, *targets: str) -> dict[str, Any]:
    return {"targets": list(targets), "scheme": scheme}


def test_the_head_is_left_in_float_unless_ignore_says_otherwise(bench: Any) -> None:
    assert schemes(bench.plan().plan)["lm_head"] is None
    assert set(schemes(bench.plan(recipe__ignore=[]).plan).values()) == {"W8A8"}


def test_later_overrides_win_and_ignore_wins_over_all(bench: Any) -> None:
    found = schemes(
        bench.plan(
            recipe__overrides=[
                override("W8A16", "*.down_proj"),
                override("W8A8Dynamic", DOWN),
                override("W8A16", "lm_head"),
            ]
        ).plan
    )
    assert found["model.layers.0.mlp.down_proj"] == "W8A16"
    assert found[DOWN] == "W8A8Dynamic"
    assert found["lm_head"] is None
    assert found["model.layers.1.mlp.up_proj"] == "W8A8"


def test_a_part_of_a_fused_unit_takes_the_whole_unit_and_says_so(bench: Any) -> None:
    planned = bench.plan(recipe__overrides=[override("None", QUERY)])
    found = schemes(planned.plan)
    unit = [f"model.layers.0.self_attn.{x}_proj" for x in "qkv"]
    assert [found[name] for name in unit] == [None, None, None]
    assert found["model.layers.1.self_attn.q_proj"] == "W8A8"
    (warning,) = planned.warnings
    assert warning.startswith("spec.recipe.overrides[0].targets[0]")
    assert QUERY in warning
    assert "2 more linears are left in float" in warning


def test_a_whole_unit_gives_no_warning(bench: Any) -> None:
    assert bench.plan(recipe__ignore=["re:.*layers\\.0\\.self_attn\\.[qkv]_proj"]).warnings == ()


def test_an_override_has_the_group_size_of_its_scheme(bench: Any) -> None:
    recipe = {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 32}}
    plan = bench.plan(recipe={**recipe, "overrides": [override("W8A8Dynamic", DOWN)]}).plan
    by_name = {x.name: x.scheme for y in plan.layers for s in y.sites for x in s.linears}
    assert by_name[QUERY].weights.group_size == 32
    assert by_name[DOWN].weights.group_size == 0


def test_embeddings_stay_float_whatever_a_wide_pattern_names(bench: Any) -> None:
    plan = bench.plan(recipe__overrides=[override("W8A16", "*")]).plan
    assert plan.layers[0].passed_through == ("model.embed_tokens.weight",)
    assert schemes(plan)[DOWN] == "W8A16"


def test_the_embedding_may_be_ignored_by_name(bench: Any) -> None:
    found = schemes(bench.plan(recipe__ignore=["model.embed_tokens", "lm_head"]).plan)
    assert found["lm_head"] is None


def test_a_tied_head_is_a_module_to_patterns(bench: Any) -> None:
    assert "lm_head" not in schemes(bench.plan("llama-tied").plan)
    assert schemes(bench.plan("llama-tied", recipe__ignore=[]).plan)["lm_head"] == "W8A8"
