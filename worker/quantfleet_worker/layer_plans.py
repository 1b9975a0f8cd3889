"""The layers of a plan: sites and their statistics, what becomes of each tensor, and the files.

Called by planning with a model that is accounted for and a scheme (or None) for each linear. Every
source tensor of a layer is quantized, transformed or passed through (law L12); every file's name
and size is fixed here (law L7).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quantfleet_api.plan import (
    FilePlan,
    FormatName,
    LayerPlan,
    LinearPlan,
    LinearScheme,
    SitePlan,
    SmoothingPlan,
    SourceTensor,
    TensorMeta,
)
from quantfleet_worker.accounting import SourceModel
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.formats.safetensors_file import split_into_files
from quantfleet_worker.models.family import Site
from quantfleet_worker.site_statistics import site_statistics

MAX_FILE_BYTES = 4 << 30
"""Most tensor data of one file; a larger tensor has a file of its own."""

HEAD_SITE = "lm_head_input"

Schemes = Mapping[str, LinearScheme | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A layer before its files."""

    name: str
    kind: Literal["embedding", "decoder", "head"]
    source: tuple[SourceTensor, ...]
    sites: tuple[SitePlan, ...] = ()
    transformed: tuple[str, ...] = ()
    passed_through: tuple[str, ...] = ()
    extra: Mapping[FormatName, tuple[TensorMeta, ...]]  # beyond source and quantized linears
    copies: Mapping[str, str]


def fused_units(model: SourceModel) -> tuple[tuple[str, ...], ...]:
    """Full names of all linears in model order, those that servers fuse together in one tuple."""
    family = model.family
    unit_of = {name: unit for unit in family.fused for name in unit}
    locals_ = [name for site in family.sites for name in site.linears]
    units = dict.fromkeys(unit_of.get(name, (name,)) for name in locals_)
    decoder = [
        tuple(f"{model.layer_name(layer)}.{name}" for name in unit)
        for layer in range(model.num_layers)
        for unit in units
    ]
    return (*decoder, (family.head,))


def layer_plans(
    model: SourceModel,
    schemes: Schemes,
    *,
    alpha: str | None,
    formats: tuple[FormatName, ...],
) -> tuple[LayerPlan, ...]:
    """All layers, embedding first and head last; `alpha` is SmoothQuant's, None without it."""
    drafts = [_embedding(model)]
    drafts += [_decoder(model, layer, schemes, alpha) for layer in range(model.num_layers)]
    drafts.append(_head(model, schemes, formats))
    contents = {name: [_outputs(draft, name, model) for draft in drafts] for name in formats}
    files = {name: _files(name, contents[name]) for name in formats}
    return tuple(
        LayerPlan(
            index=index,
            name=draft.name,
            kind=draft.kind,
            source=draft.source,
            sites=draft.sites,
            transformed=draft.transformed,
            passed_through=draft.passed_through,
            derived=_derived(model, [contents[name][index] for name in formats]),
            copies=dict(draft.copies),
            files={name: files[name][index] for name in formats},
        )
        for index, draft in enumerate(drafts)
    )


def linear_plan(
    model: SourceModel, name: str, local: str, scheme: LinearScheme | None
) -> LinearPlan:
    """The plan of the linear `name`; a head without a weight of its own has the embedding's."""
    weight = model.tensors.get(f"{name}.weight", model.embedding_weight)
    out_features, in_features = weight.shape
    return LinearPlan(
        name=name,
        local=local,
        out_features=out_features,
        in_features=in_features,
        bias=f"{name}.bias" in model.tensors,
        scheme=scheme,
    )


def _embedding(model: SourceModel) -> _Draft:
    source = model.tensors_of(model.family.embedding)
    return _Draft(
        name=model.family.embedding,
        kind="embedding",
        source=source,
        passed_through=tuple(tensor.name for tensor in source),
        extra={},
        copies={},
    )


def _decoder(model: SourceModel, layer: int, schemes: Schemes, alpha: str | None) -> _Draft:
    prefix = model.layer_name(layer)
    source = model.tensors_of(prefix)
    sites = tuple(_site(model, prefix, site, schemes, alpha) for site in model.family.sites)
    quantized = _quantized(sites, source)
    changed = _changed_by_smoothing(prefix, sites)
    return _Draft(
        name=prefix,
        kind="decoder",
        source=source,
        sites=sites,
        transformed=tuple(t.name for t in source if t.name in changed - quantized),
        passed_through=tuple(t.name for t in source if t.name not in changed | quantized),
        extra={},
        copies={},
    )


def _site(
    model: SourceModel, prefix: str, site: Site, schemes: Schemes, alpha: str | None
) -> SitePlan:
    linears = tuple(
        linear_plan(model, f"{prefix}.{local}", local, schemes[f"{prefix}.{local}"])
        for local in site.linears
    )
    smoothing = None
    if alpha is not None and any(linear.scheme is not None for linear in linears):
        smoothing = _smoothing(model, prefix, site, alpha)
    features = linears[0].in_features
    assert all(linear.in_features == features for linear in linears), f"{site.name}: one input"
    return SitePlan(
        name=f"{prefix}.{site.name}",
        features=features,
        linears=linears,
        statistics=site_statistics(linears, smoothed=smoothing is not None),
        smoothing=smoothing,
    )


def _smoothing(model: SourceModel, prefix: str, site: Site, alpha: str) -> SmoothingPlan | None:
    pair = site.smoothing
    if pair is None:
        return None
    shared = pair.kind == "value_rows"
    columns = model.tensors[f"{prefix}.{site.linears[0]}.weight"].shape[1]
    given = model.tensors[f"{prefix}.{pair.source}.weight"].shape[0]
    assert columns == given * (model.heads_per_group if shared else 1), f"{site.name}: no pair"
    return SmoothingPlan(
        alpha=alpha,
        kind=pair.kind,
        source=pair.source,
        heads_per_group=model.heads_per_group if shared else 1,
        head_dim=model.head_dim if shared else 0,
    )


def _changed_by_smoothing(prefix: str, sites: Iterable[SitePlan]) -> set[str]:
    """Source tensors that smoothing multiplies or divides, quantized ones among them."""
    changed: set[str] = set()
    for site in sites:
        if site.smoothing is not None:
            changed |= {f"{linear.name}.weight" for linear in site.linears}
            source = f"{prefix}.{site.smoothing.source}"
            changed |= {f"{source}.weight", f"{source}.bias"}
    return changed


def _quantized(sites: Iterable[SitePlan], source: Iterable[SourceTensor]) -> set[str]:
    """Source tensors that quantized linears take the place of, their biases included."""
    names = {linear.name for site in sites for linear in site.linears if linear.scheme}
    return {tensor.name for tensor in source if tensor.name.rpartition(".")[0] in names}


def _head(model: SourceModel, schemes: Schemes, formats: tuple[FormatName, ...]) -> _Draft:
    family, own = model.family, model.head_weight
    scheme = schemes[family.head]
    extra = {
        name: FORMATS[name].extra_tensors(
            _meta(model.embedding_weight),
            head=family.head,
            tied=own is None,
            head_quantized=scheme is not None,
        )
        for name in formats
    }
    copies = {tensor.meta.name: tensor.copy_of for tensors in extra.values() for tensor in tensors}
    sites: tuple[SitePlan, ...] = ()
    if own is not None or scheme is not None:
        linear = linear_plan(model, family.head, family.head, scheme)
        sites = (_head_site(linear),)
    source = [*model.tensors_of(family.final_norm), *model.tensors_of(family.head)]
    quantized = _quantized(sites, source)
    passed_through = tuple(t.name for t in source if t.name not in quantized)
    if copies or (own is None and scheme is not None):
        source.append(model.embedding_weight)  # read again; its own layer passes it through
    return _Draft(
        name=family.head,
        kind="head",
        source=tuple(source),
        sites=sites,
        passed_through=passed_through,
        extra={name: tuple(tensor.meta for tensor in extra[name]) for name in formats},
        copies=copies,
    )


def _head_site(linear: LinearPlan) -> SitePlan:
    return SitePlan(
        name=HEAD_SITE,
        features=linear.in_features,
        linears=(linear,),
        statistics=site_statistics((linear,), smoothed=False),
    )


def _outputs(draft: _Draft, name: FormatName, model: SourceModel) -> tuple[TensorMeta, ...]:
    """What one format writes for a layer, by tensor name."""
    kept = {*draft.transformed, *draft.passed_through}
    tensors = [_meta(tensor) for tensor in draft.source if tensor.name in kept]
    for site in draft.sites:
        for linear in site.linears:
            if linear.scheme is not None:
                tensors += FORMATS[name].tensors(linear, model.dtype)
    tensors += draft.extra.get(name, ())
    ordered = tuple(sorted(tensors, key=lambda tensor: tensor.name))
    assert len({tensor.name for tensor in ordered}) == len(ordered), f"{draft.name}: a name twice"
    return ordered


def _meta(tensor: SourceTensor) -> TensorMeta:
    return TensorMeta(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)


def _derived(model: SourceModel, outputs: Sequence[Iterable[TensorMeta]]) -> tuple[str, ...]:
    names = {tensor.name for tensors in outputs for tensor in tensors}
    return tuple(sorted(names - set(model.tensors)))


def _files(
    name: FormatName, layers: Sequence[tuple[TensorMeta, ...]]
) -> tuple[tuple[FilePlan, ...], ...]:
    """The files of each layer; names are counted over all layers."""
    split = [split_into_files(tensors, MAX_FILE_BYTES) for tensors in layers]
    names = iter(FORMATS[name].file_names(sum(len(files) for files in split)))
    return tuple(
        tuple(FilePlan(name=next(names), tensors=tensors) for tensors in files) for files in split
    )
