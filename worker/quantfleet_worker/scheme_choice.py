"""Which scheme each linear gets: the recipe's, then overrides in their order, then ignore.

Called by planning. Servers fuse some linears of a layer into one (q/k/v, gate/up) and refuse parts
of different schemes, so whatever acts on one linear acts on its whole fused unit; where a pattern
named only a part of a unit, a warning says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import LinearScheme
from quantfleet_api.recipe import Recipe, linear_scheme
from quantfleet_worker.targets import matching


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeChoice:
    """The scheme of each linear by full name (None = left in float), and what to warn of."""

    schemes: dict[str, LinearScheme | None]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """One target of the manifest and what it does to the linears that it names."""

    field: str
    text: str
    scheme: LinearScheme | None


def choose_schemes(
    recipe: Recipe, *, units: Sequence[tuple[str, ...]], embedding: str
) -> SchemeChoice:
    """Choose for every linear of `units` (full names, fused linears together, in model order).

    `embedding` is a module that patterns may name, but that is never quantized.
    """
    unit_of = {name: unit for unit in units for name in unit}
    base = linear_scheme(recipe, recipe.scheme)
    schemes: dict[str, LinearScheme | None] = dict.fromkeys(unit_of, base)
    warnings = []
    for pattern in _patterns(recipe):
        named = matching(pattern.text, [embedding, *unit_of], field=pattern.field)
        if named == (embedding,) and pattern.scheme is not None:
            rule = "must not name the embedding, which cannot be quantized"
            raise InvalidInput(pattern.field, pattern.text, rule)
        linears = [name for name in named if name != embedding]
        whole = dict.fromkeys(member for name in linears for member in unit_of[name])
        schemes.update(dict.fromkeys(whole, pattern.scheme))
        warnings += _extension(pattern, linears, [n for n in whole if n not in set(linears)])
    return SchemeChoice(schemes=schemes, warnings=tuple(warnings))


def _patterns(recipe: Recipe) -> list[_Pattern]:
    overrides = [
        _Pattern(
            field=f"spec.recipe.overrides[{i}].targets[{j}]",
            text=target,
            scheme=None if override.scheme is None else linear_scheme(recipe, override.scheme),
        )
        for i, override in enumerate(recipe.overrides)
        for j, target in enumerate(override.targets)
    ]
    ignored = [
        _Pattern(field=f"spec.recipe.ignore[{i}]", text=target, scheme=None)
        for i, target in enumerate(recipe.ignore)
    ]
    return overrides + ignored


def _extension(pattern: _Pattern, named: Sequence[str], added: Sequence[str]) -> list[str]:
    if not added:
        return []
    what = "left in float" if pattern.scheme is None else f"given scheme {pattern.scheme.name}"
    return [
        f"{pattern.field}: {pattern.text!r} names {named[0]} but not {added[0]}, which servers "
        f"fuse with it; {len(added)} more linears are {what}"
    ]
