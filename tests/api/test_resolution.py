"""What a resolved recipe says, and what that means for a linear."""

from collections.abc import Callable
from typing import Any

import pytest

from quantfleet_api.loading import parse_job
from quantfleet_api.plan import ActivationScheme, GPTQOptions, LinearScheme, WeightScheme
from quantfleet_api.recipe import Recipe, linear_scheme, needs_data
from quantfleet_api.spec import PROPAGATION_DEFAULTS, resolve

Build = Callable[..., dict[str, Any]]

CALIBRATION = {
    "source": {"pvc": {"claimName": "data", "path": "c.jsonl"}},
    "sampleCount": 4,
    "sequenceLength": 8,
}


def _recipe(minimal: Build, recipe: dict[str, Any]) -> Recipe:
    return parse_job(
        minimal(
            {
                "spec.calibration": CALIBRATION,
                "spec.recipe": {"weights": {"method": "RTN"}} | recipe,
            }
        )
    ).spec.recipe


@pytest.mark.parametrize(
    ("scheme", "group_size"), [("W8A8", 0), ("W8A8Dynamic", 0), ("W8A16", 0), ("W4A16", 128)]
)
def test_group_size_and_propagation_follow_the_scheme(
    minimal: Build, scheme: Any, group_size: int
) -> None:
    document = minimal({"spec.calibration": CALIBRATION, "spec.recipe.scheme": scheme})

    recipe = resolve(parse_job(document)).spec.recipe

    assert recipe.weights.group_size == group_size
    assert recipe.propagation == PROPAGATION_DEFAULTS[scheme]
    assert recipe.weights.gptq is None
    assert (recipe.activations is not None) == (scheme == "W8A8")


def test_what_is_written_stays(minimal: Build) -> None:
    recipe = {
        "scheme": "W4A16",
        "weights": {"method": "GPTQ", "groupSize": 0, "gptq": {"blockSize": 64}},
        "propagation": "Float",
    }
    document = minimal({"spec.calibration": CALIBRATION, "spec.recipe": recipe})

    resolved = resolve(parse_job(document)).spec.recipe

    assert resolved.weights.group_size == 0
    assert resolved.propagation == "Float"
    assert resolved.weights.gptq is not None
    assert resolved.weights.gptq.block_size == 64
    assert resolved.weights.gptq.dampening == "0.01"
    assert resolved.weights.gptq.activation_order is True


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"scheme": "W8A8"}, True),
        ({"scheme": "W8A8Dynamic"}, False),
        ({"scheme": "W8A16"}, False),
        ({"scheme": "W4A16"}, False),
        ({"scheme": "W4A16", "weights": {"method": "GPTQ"}}, True),
        ({"scheme": "W8A8Dynamic", "transforms": [{"smoothQuant": {}}]}, True),
        ({"scheme": "W8A16", "overrides": [{"targets": ["a"], "scheme": "W8A8"}]}, True),
        ({"scheme": "W8A16", "overrides": [{"targets": ["a"], "scheme": "None"}]}, False),
    ],
    ids=repr,
)
def test_data_is_needed(minimal: Build, recipe: dict[str, Any], expected: bool) -> None:
    assert needs_data(_recipe(minimal, recipe)) is expected


def test_scheme_of_a_static_linear(minimal: Build) -> None:
    recipe = _recipe(minimal, {"scheme": "W8A8", "activations": {"observer": "MSE"}})

    assert linear_scheme(recipe, "W8A8") == LinearScheme(
        name="W8A8",
        weights=WeightScheme(bits=8, symmetric=True, group_size=0),
        activations=ActivationScheme(kind="static", symmetric=False, observer="MSE"),
    )


def test_override_has_its_own_weight_defaults_and_the_recipes_method(minimal: Build) -> None:
    recipe = _recipe(
        minimal,
        {
            "scheme": "W4A16",
            "weights": {"method": "GPTQ", "groupSize": 32, "symmetric": False},
            "overrides": [{"targets": ["a"], "scheme": "W8A8Dynamic"}],
        },
    )

    assert linear_scheme(recipe, "W4A16") == LinearScheme(
        name="W4A16",
        weights=WeightScheme(bits=4, symmetric=False, group_size=32, gptq=GPTQOptions()),
        activations=None,
    )
    assert linear_scheme(recipe, "W8A8Dynamic") == LinearScheme(
        name="W8A8Dynamic",
        weights=WeightScheme(bits=8, symmetric=True, group_size=0, gptq=GPTQOptions()),
        activations=ActivationScheme(kind="dynamic", symmetric=True),
    )


def test_scheme_of_a_linear_is_the_same_before_and_after_resolution(minimal: Build) -> None:
    document = minimal(
        {"spec.recipe": {"scheme": "W4A16", "weights": {"method": "RTN", "symmetric": False}}}
    )
    job = parse_job(document)

    before = linear_scheme(job.spec.recipe, "W4A16")
    assert before.weights.group_size == 128
    assert linear_scheme(resolve(job).spec.recipe, "W4A16") == before
