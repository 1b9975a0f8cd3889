"""The layers of a plan as short tables: layers that are alike share a row. Called by `describe`."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any

from quantfleet_api.plan import LayerPlan, LinearPlan, LinearScheme, Plan, SitePlan
from quantfleet_worker.formats.safetensors_file import num_bytes
from quantfleet_worker.schedule import Layout
from quantfleet_worker.site_statistics import layer_passes
from quantfleet_worker.traffic import layer_traffic

Row = dict[str, Any]


def site_rows(layers: Sequence[LayerPlan]) -> list[Row]:
    """Every site: its linears, their scheme, what is collected and how it is smoothed."""
    return [
        {"layers": run_name(run), **_site_row(run[0], site)}
        for run in runs_of(layers, lambda layer: _plain(_site_row(layer, s) for s in layer.sites))
        for site in run[0].sites
    ]


def layer_rows(plan: Plan, layout: Layout | None) -> list[Row]:
    """Every layer: passes, bytes in and out, and with a layout what one such layer exchanges."""
    passes = layer_passes(plan.layers, propagation=plan.propagation)

    def row(layer: LayerPlan) -> Row:
        shown: Row = {
            "kind": layer.kind,
            "passes": passes[layer.index],
            "sourceBytes": sum(tensor.num_bytes for tensor in layer.source),
        }
        for name, files in layer.files.items():
            shown[f"{name} bytes"] = sum(num_bytes(t) for file in files for t in file.tensors)
        if layout is not None:
            moved = layer_traffic(plan, layout, layer)
            shown |= {
                "exchangePhases": moved.phases,
                "statisticsBytes": moved.partials,
                "solutionsBytes": moved.solutions,
                "resultsBytes": moved.results,
            }
        return shown

    return [
        {"layers": run_name(run), **row(run[0])}
        for run in runs_of(plan.layers, lambda layer: _plain([row(layer)]))
    ]


def runs_of(
    layers: Iterable[LayerPlan], key: Callable[[LayerPlan], Hashable]
) -> list[list[LayerPlan]]:
    """Consecutive layers of one kind and equal keys."""
    return [list(run) for _, run in groupby(layers, key=lambda layer: (layer.kind, key(layer)))]


def run_name(run: Sequence[LayerPlan]) -> str:
    """`model.layers.0-29`, or the name of the only layer."""
    if len(run) == 1:
        return run[0].name
    return f"{run[0].name}-{run[-1].name.rpartition('.')[2]}"


def shown_scheme(scheme: LinearScheme | None) -> str:
    """A scheme in few words; what is usual (symmetric weights, one scale a row) goes unsaid."""
    if scheme is None:
        return "float"
    weights, activations = scheme.weights, scheme.activations
    parts = [f"{scheme.name} {'RTN' if weights.gptq is None else 'GPTQ'}"]
    if weights.group_size:
        parts.append(f"groups of {weights.group_size}")
    if not weights.symmetric:
        parts.append("asymmetric")
    if activations is not None and activations.kind == "static":
        kind = "symmetric" if activations.symmetric else "asymmetric"
        parts.append(f"{kind} {activations.observer} input")
    return ", ".join(parts)


def _site_row(layer: LayerPlan, site: SitePlan) -> Row:
    smoothing = site.smoothing
    return {
        "site": site.name.removeprefix(f"{layer.name}."),
        "linears": ", ".join(_shown_linear(linear) for linear in site.linears),
        "scheme": "; ".join(dict.fromkeys(shown_scheme(linear.scheme) for linear in site.linears)),
        "statistics": ", ".join(site.statistics) or "none",
        "smoothing": "none" if smoothing is None else f"{smoothing.alpha} into {smoothing.source}",
    }


def _shown_linear(linear: LinearPlan) -> str:
    bias = " + bias" if linear.bias else ""
    name = linear.local.rpartition(".")[2]
    return f"{name} {linear.out_features}x{linear.in_features}{bias}"


def _plain(rows: Iterable[Row]) -> tuple[tuple[tuple[str, Any], ...], ...]:
    return tuple(tuple(row.items()) for row in rows)
