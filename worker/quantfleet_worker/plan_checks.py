"""Rules that recipe, model and formats must follow together. Called by planning; pure."""

from collections.abc import Mapping
from typing import Any, get_args

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import LinearScheme, SchemeName
from quantfleet_api.recipe import Recipe, linear_scheme
from quantfleet_api.spec import JobSpec
from quantfleet_worker.accounting import SourceModel
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.layer_plans import Schemes


def check_something_quantized(recipe: Recipe, schemes: Schemes) -> None:
    """A run that would only copy is refused."""
    if not any(schemes.values()):
        rule = "must leave at least one linear to quantize (overrides and ignore take all)"
        raise InvalidInput("spec.recipe", f"scheme {recipe.scheme}", rule)


def check_group_sizes(model: SourceModel, schemes: Schemes) -> None:
    """Groups must be whole: a server computes the number of scales from the shape."""
    for name, scheme in schemes.items():
        size = 0 if scheme is None else scheme.weights.group_size
        weight = model.tensors.get(f"{name}.weight", model.embedding_weight)
        if size and weight.shape[1] % size:
            rule = f"must divide the {weight.shape[1]} input features of {name}"
            raise InvalidInput("spec.recipe.weights.groupSize", size, rule)


def check_formats(spec: JobSpec, model: SourceModel, schemes: Schemes) -> None:
    """Every format must be able to hold every scheme in use."""
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
        reason = FORMATS[format_name].mixture_refusal(used)
        if reason is not None:
            rule = f"must be able to hold all schemes of the recipe together: {reason}"
            raise InvalidInput(f"spec.output.formats[{index}]", format_name, rule)


def check_length(field: str, length: int, config: Mapping[str, Any]) -> None:
    """Texts must fit the positions that the model knows."""
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and length > longest:
        raise InvalidInput(field, length, f"must be at most the model's {longest} positions")


def _shown(scheme: LinearScheme) -> str:
    symmetry = "symmetric" if scheme.weights.symmetric else "asymmetric"
    group = f", group size {scheme.weights.group_size}" if scheme.weights.group_size else ""
    return f"{scheme.name} with {symmetry} weights{group}"


def _what_exists(recipe: Recipe, model: SourceModel) -> str:
    """The matrix of formats and schemes, each scheme with its own defaults."""
    weights = recipe.weights.model_copy(update={"group_size": None, "symmetric": True})
    plain = Recipe(scheme=recipe.scheme, weights=weights)
    names: tuple[SchemeName, ...] = get_args(SchemeName)
    rows = []
    for format_name, writer in FORMATS.items():
        held = [
            name
            for name in names
            if writer.refusal(linear_scheme(plain, name), model_dtype=model.dtype) is None
        ]
        rows.append(f"{format_name} with {', '.join(held)}")
    return "; ".join(rows)
