"""Which linears a pattern of the manifest names."""

import pytest

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.targets import matching

NAMES = [
    f"model.layers.{layer}.{local}"
    for layer in (0, 1, 10)
    for local in ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")
] + ["lm_head"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("lm_head", ["lm_head"]),
        ("model.layers.1.mlp.up_proj", ["model.layers.1.mlp.up_proj"]),
        ("*.layers.1.mlp.down_proj", ["model.layers.1.mlp.down_proj"]),
        ("*.layers.1.*", NAMES[3:6]),
        ("*.down_proj", [f"model.layers.{i}.mlp.down_proj" for i in (0, 1, 10)]),
        ("mlp.down_*", [f"model.layers.{i}.mlp.down_proj" for i in (0, 1, 10)]),
        ("layers.[01].mlp.up_proj", ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"]),
        ("re:.*layers\\.1\\..*q_proj", ["model.layers.1.self_attn.q_proj"]),
        ("re:model", NAMES[:-1]),
        ("*", NAMES),
    ],
)  # fmt: skip
def test_a_pattern_names(pattern: str, expected: list[str]) -> None:
    assert list(matching(pattern, NAMES, field="f")) == expected


@pytest.mark.parametrize(
    ("pattern", "suggested"),
    [
        ("model.layers.1.mlp.dwn_proj", "model.layers.1.mlp.down_proj"),
        ("down_proj", "*.down_proj"),
        ("model.layers.0.mlp", "model.layers.0.mlp.*"),
        ("lmhead", "lm_head"),
        ("*.nothing_like_it", "*.q_proj"),
        ("re:q_proj", "*.q_proj"),
    ],
)
def test_a_pattern_that_names_nothing_is_refused_with_one_that_does(
    pattern: str, suggested: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        matching(pattern, NAMES, field="spec.recipe.ignore[0]")
    assert refused.value.field == "spec.recipe.ignore[0]"
    assert refused.value.value == pattern
    assert suggested in refused.value.rule
    assert matching(suggested, NAMES, field="f"), "what is suggested works"


def test_a_broken_regular_expression_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        matching("re:(", NAMES, field="f")
    assert "regular expression" in refused.value.rule
