"""The recipe of a manifest: what becomes of each linear, and what that needs.

Read by planning (which scheme a linear gets, whether data is needed) and by the rules. Filling in
what depends on other fields is `resolved_recipe`; nothing else supplies defaults of a recipe.
"""

import re
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    WithJsonSchema,
)

from quantfleet_api.fields import (
    DecimalBetween,
    DecimalString,
    Manifest,
    OneOf,
    broken,
    integer_only,
)
from quantfleet_api.plan import (
    ActivationScheme,
    GPTQOptions,
    LinearScheme,
    SchemeName,
    WeightScheme,
)

Propagation = Literal["Float", "Quantized"]
Method = Literal["RTN", "GPTQ"]
Observer = Literal["MinMax", "Percentile", "MSE"]

PROPAGATION_DEFAULTS: dict[SchemeName, Propagation] = {
    "W8A8": "Float",
    "W8A8Dynamic": "Float",
    "W8A16": "Float",
    "W4A16": "Quantized",
}
"""What the next layer sees while calibrating, unless the recipe says: by the recipe's scheme.

Chosen by measurement (docs/quality.md): a second pass is worth its time where weights have 4 bits.
"""

GROUP_SIZE_DEFAULTS: dict[SchemeName, int] = {"W8A8": 0, "W8A8Dynamic": 0, "W8A16": 0, "W4A16": 128}
"""Columns that share a scale unless the recipe says; 0 = one scale a row."""

WEIGHT_ONLY: frozenset[SchemeName] = frozenset({"W8A16", "W4A16"})
"""Schemes whose weights may be grouped or asymmetric: no integer product needs them otherwise."""

STATIC: frozenset[SchemeName] = frozenset({"W8A8"})
"""Schemes with a fixed range of activations, which only data can give."""


def _compiles(target: str) -> str:
    if target.startswith("re:"):
        try:
            re.compile(target[3:])
        except re.error as error:
            raise broken(f"must be a valid regular expression after 're:' ({error})") from None
    return target


def _none_or_scheme(value: object) -> object:
    if value is None or value == "None":
        return None
    if value not in get_args(SchemeName):
        raise broken(f"must be {', '.join(get_args(SchemeName))} or None")
    return value


Target = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_compiles)]
"""Names modules: exactly, by a glob, or by a regular expression after "re:"."""

SchemeOrNone = Annotated[
    SchemeName | None,
    BeforeValidator(_none_or_scheme),
    # A string, because the API server drops null fields.
    PlainSerializer(lambda scheme: scheme or "None", return_type=str),
    WithJsonSchema({"type": "string", "enum": [*get_args(SchemeName), "None"]}),
]

GroupSize = Annotated[Literal[0, 32, 64, 128], BeforeValidator(integer_only)]


class GPTQ(Manifest):
    """Options of GPTQ; see `plan.GPTQOptions`."""

    block_size: Annotated[StrictInt, Field(ge=1, le=8192)] = 128
    """Input columns that are solved together before the columns after them are corrected."""
    dampening: Annotated[DecimalString, DecimalBetween("0", "1", low_open=True, high_open=True)] = (
        "0.01"
    )
    """Part of the mean diagonal of the second moments that is added to the diagonal, a decimal
    string above 0 and below 1. More makes the solution steadier and less exact."""
    activation_order: StrictBool = True
    """Whether columns are solved in order of falling activation energy instead of as they lie."""


class Weights(Manifest):
    """How weights become codes. None is resolved: see `resolved_recipe`."""

    method: Method
    """RTN rounds to nearest and needs no data; GPTQ (Frantar et al. 2022) corrects the columns
    that are left for the error of those that are done, and needs calibration data."""
    group_size: GroupSize | None = None
    """Input columns that share a scale; 0 is one scale a row. Absent: 128 with W4A16, else 0.
    Other sizes than 0 are for the schemes that quantize weights only (W8A16, W4A16)."""
    symmetric: StrictBool = True
    """Whether codes have no zero point. False is for the schemes that quantize weights only."""
    gptq: GPTQ | None = None
    """Options of GPTQ, only allowed with that method. Absent: its defaults."""


class Activations(Manifest):
    """How a static scheme finds the range of a linear's input."""

    symmetric: StrictBool = False
    """Whether the range is centred at zero, so that codes have no zero point."""
    observer: Observer = "MinMax"
    """How the range is chosen from what was seen: MinMax takes all of it, Percentile cuts rare
    values off, MSE takes the range with the least squared error."""
    percentile: Annotated[DecimalString, DecimalBetween("50", "100", low_open=True)] = "99.99"
    """Percent of values that stay inside the range, a decimal string above 50 and at most 100.
    Read by the observer Percentile only."""


class SmoothQuant(Manifest):
    """SmoothQuant (Xiao et al. 2022): alpha is the share of difficulty that weights take over."""

    alpha: Annotated[DecimalString, DecimalBetween("0", "1")] = "0.5"
    """Share of the difficulty that moves from activations to weights, a decimal string from 0
    (none) to 1 (all)."""


class Transform(OneOf):
    """A step that changes weights before they are quantized."""

    smooth_quant: SmoothQuant
    """Scales channels down in activations and up in the weights that read them, so that outliers
    cost less. The float model stays the same."""


class Override(Manifest):
    """Another scheme for some linears; None leaves them in the model's dtype."""

    targets: Annotated[tuple[Target, ...], Field(min_length=1, max_length=256)]
    """Modules, as exact names, as globs, or as regular expressions after "re:". Linears that the
    loader fuses (q, k and v; gate and up) take one scheme together. One that names no linear of
    the model is refused."""
    scheme: SchemeOrNone
    """What these linears get instead of the recipe's scheme, with that scheme's default group
    size and symmetry. None (a string) leaves them in the model's own type."""


class Recipe(Manifest):
    """What becomes of each linear. `group_size`, `symmetric` belong to `scheme`."""

    scheme: SchemeName
    """Bits of weights (W) and activations (A). W8A8: both 8, ranges of activations fixed by
    calibration. W8A8Dynamic: both 8, one range a token while the model runs. W8A16, W4A16:
    weights only."""
    weights: Weights
    """How weights become codes."""
    activations: Activations | None = None
    """How fixed ranges of activations are found; only allowed if some scheme of the recipe is
    W8A8. Absent: the defaults."""
    transforms: Annotated[tuple[Transform, ...], Field(max_length=16)] = ()
    """Steps before quantization, in this order. smoothQuant may be there once."""
    overrides: Annotated[tuple[Override, ...], Field(max_length=256)] = ()
    """Exceptions from the recipe's scheme; where several name a linear, the last one counts."""
    ignore: Annotated[tuple[Target, ...], Field(max_length=1024)] = ("lm_head",)
    """Modules that stay in the model's own type, spelt as in targets. It counts after overrides.
    Embeddings are never quantized."""
    propagation: Propagation | None = None
    """What the next layer sees while calibrating: the outputs of the Float layer, or of the
    Quantized one, which costs a second pass. Absent: Quantized with W4A16, else Float."""
    warnings: Literal["Report", "Fail"] = "Report"
    """Whether what differs from what was asked (a dropped sample, a layer left in float) is only
    counted and named, or fails the job with exit code 65."""


def schemes_of(recipe: Recipe) -> tuple[SchemeName, ...]:
    """Every scheme that the recipe names, its own first, without repetition."""
    named = [recipe.scheme, *(entry.scheme for entry in recipe.overrides)]
    return tuple(dict.fromkeys(scheme for scheme in named if scheme is not None))


def smooth_quant_of(recipe: Recipe) -> SmoothQuant | None:
    """The recipe's SmoothQuant step; there is at most one."""
    steps = [step.smooth_quant for step in recipe.transforms]
    return steps[0] if steps else None


def needs_data(recipe: Recipe) -> bool:
    """Whether anything in the recipe is computed from activations."""
    return (
        recipe.weights.method == "GPTQ"
        or smooth_quant_of(recipe) is not None
        or not STATIC.isdisjoint(schemes_of(recipe))
    )


def resolved_recipe(recipe: Recipe) -> Recipe:
    """The recipe with every value that depends on others filled in; a second call changes nothing.

    `activations` stays None where no scheme is static, `gptq` where the method is not GPTQ.
    """
    weights = recipe.weights
    group_size: int | None = weights.group_size
    if group_size is None:
        group_size = GROUP_SIZE_DEFAULTS[recipe.scheme]
    gptq = (weights.gptq or GPTQ()) if weights.method == "GPTQ" else None
    static = not STATIC.isdisjoint(schemes_of(recipe))
    return recipe.model_copy(
        update={
            "weights": weights.model_copy(update={"group_size": group_size, "gptq": gptq}),
            "activations": (recipe.activations or Activations()) if static else None,
            "propagation": recipe.propagation or PROPAGATION_DEFAULTS[recipe.scheme],
        }
    )


def linear_scheme(recipe: Recipe, name: SchemeName) -> LinearScheme:
    """What `name` means for a linear under this recipe.

    The recipe's own scheme has the recipe's group size and symmetry; a scheme that comes from an
    override has that scheme's defaults. Method and activations are the recipe's for all.
    """
    resolved = resolved_recipe(recipe)
    weights = resolved.weights
    own = name == recipe.scheme
    group_size = weights.group_size if own else None
    return LinearScheme(
        name=name,
        weights=WeightScheme(
            bits=4 if name == "W4A16" else 8,
            symmetric=weights.symmetric if own else True,
            group_size=GROUP_SIZE_DEFAULTS[name] if group_size is None else group_size,
            gptq=None if weights.gptq is None else GPTQOptions(**dict(weights.gptq)),
        ),
        activations=_activation_scheme(resolved, name),
    )


def _activation_scheme(resolved: Recipe, name: SchemeName) -> ActivationScheme | None:
    if name == "W8A8Dynamic":
        return ActivationScheme(kind="dynamic", symmetric=True)
    if name not in STATIC:
        return None
    options = resolved.activations or Activations()
    return ActivationScheme(
        kind="static",
        symmetric=options.symmetric,
        observer=options.observer,
        percentile=options.percentile,
    )
