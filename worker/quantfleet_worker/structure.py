"""The part of a plan that needs no data: source, schemes, layers.

Called by planning stage by stage, in the order in which things are refused: architecture,
checkpoint, targets, formats.
"""

from dataclasses import dataclass
from pathlib import Path

from quantfleet_api.plan import LayerPlan
from quantfleet_api.recipe import smooth_quant_of
from quantfleet_api.spec import JobSpec
from quantfleet_worker.accounting import FIELD, SourceModel, account
from quantfleet_worker.json_text import json_object
from quantfleet_worker.layer_plans import fused_units, layer_plans
from quantfleet_worker.models.family import Family
from quantfleet_worker.models.registry import family_of
from quantfleet_worker.plan_checks import (
    check_formats,
    check_group_sizes,
    check_something_quantized,
)
from quantfleet_worker.scheme_choice import choose_schemes
from quantfleet_worker.source import CONFIG, Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint and what it was understood to be."""

    checkpoint: Checkpoint
    model: SourceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """All layers, and what of the recipe had to be done otherwise than it says."""

    layers: tuple[LayerPlan, ...]
    warnings: tuple[str, ...]

    @property
    def observed(self) -> bool:
        """Whether anything is computed from activations."""
        return any(site.statistics for layer in self.layers for site in layer.sites)


def open_source(folder: Path) -> Source:
    """The model in a folder: its architecture first, then every tensor."""
    family = _family(folder)
    checkpoint = Checkpoint.open(folder)
    return Source(
        checkpoint=checkpoint, model=account(family, checkpoint.config, checkpoint.tensors)
    )


def plan_structure(spec: JobSpec, source: Source) -> Structure:
    """Schemes and layers of a resolved spec."""
    model, recipe = source.model, spec.recipe
    choice = choose_schemes(recipe, units=fused_units(model), embedding=model.family.embedding)
    check_something_quantized(recipe, choice.schemes)
    check_group_sizes(model, choice.schemes)
    check_formats(spec, model, choice.schemes)
    smooth = smooth_quant_of(recipe)
    layers = layer_plans(
        model,
        choice.schemes,
        alpha=None if smooth is None else smooth.alpha,
        formats=spec.output.formats,
    )
    return Structure(layers=layers, warnings=choice.warnings)


def _family(folder: Path) -> Family:
    """The architecture, before anything but config.json is opened."""
    path = folder / CONFIG
    if not path.is_file():
        Checkpoint.open(folder)  # says what is wrong with the folder
    return family_of(json_object(path.read_bytes(), field=f"{FIELD}: {CONFIG}"))
