"""Law L12: every source tensor is quantized, transformed, passed through or dropped by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import LayerPlan, Plan
from quantfleet_api.spec import JobSpec, resolve
from quantfleet_worker.plan_checks import check_formats
from quantfleet_worker.planning import make_plan
from quantfleet_worker.structure import Source, Structure, open_source, plan_structure
from tiny_models import make_tiny_model

FORMATS = ("CompressedTensors", "Ascend")


def quantized_sources(layer: LayerPlan, names: set[str]) -> set[str]:
    """Source tensors of the layer's quantized linears."""
    linears = [x for site in layer.sites for x in site.linears if x.scheme is not None]
    return {f"{x.name}.{part}" for x in linears for part in ("weight", "bias")} & names


def assert_partition(
    layers: tuple[LayerPlan, ...], dropped: tuple[str, ...], names: set[str]
) -> None:
    """Each source tensor has one fate; each output tensor has a source or is named as derived."""
    fates = [*dropped]
    for layer in layers:
        quantized = quantized_sources(layer, names)
        fates += [*quantized, *layer.transformed, *layer.passed_through]
        kept = {*quantized, *layer.transformed, *layer.passed_through}
        assert {t.name for t in layer.source} - kept <= {"model.embed_tokens.weight"}
        for name, files in layer.files.items():
            outputs = [t.name for file in files for t in file.tensors]
            assert len(set(outputs)) == len(outputs), name
            assert set(outputs) <= kept | set(layer.derived)
            assert {*layer.transformed, *layer.passed_through} <= set(outputs)
        assert not set(layer.derived) & names
    assert sorted(fates) == sorted(names)


PATTERNS = st.sampled_from(
    [
        "*", "*.layers.0.*", "*.layers.1.*", "*.q_proj", "*.o_proj", "*.down_proj", "*.gate_proj",
        "mlp.*", "self_attn.*", "re:.*up_proj", "lm_head", "model.layers.1.self_attn.v_proj",
        "model.layers.0.mlp.down_proj", "*.layers.[01].mlp.*",
    ]
)  # fmt: skip
SCHEMES = st.sampled_from(["W8A8", "W8A8Dynamic", "W8A16", "None"])
RECIPES = st.sampled_from(
    [
        {"scheme": "W8A8", "weights": {"method": "RTN"}},
        {"scheme": "W8A8", "weights": {"method": "GPTQ"}, "activations": {"symmetric": True}},
        {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 32}},
    ]
)
OVERRIDES = st.lists(
    st.fixed_dictionaries(
        {"targets": st.lists(PATTERNS, min_size=1, max_size=3), "scheme": SCHEMES}
    ),
    max_size=4,
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    recipe=RECIPES,
    model=st.sampled_from(["llama", "llama-tied", "qwen2", "qwen3"]),
    overrides=OVERRIDES,
    ignore=st.lists(PATTERNS, max_size=2, unique=True),
    smooth=st.booleans(),
    both=st.booleans(),
)
def test_source_tensors_are_partitioned_whatever_the_recipe(
    bench: Any,
    recipe: dict[str, Any],
    model: str,
    overrides: list[Any],
    ignore: list[str],
    smooth: bool,
    both: bool,
) -> None:
    transforms = [{"smoothQuant": {}}] if smooth else []
    changes = {"overrides": overrides, "ignore": ignore, "transforms": transforms}
    formats = list(FORMATS if both else FORMATS[:1])
    job = resolve(bench.job(recipe={**recipe, **changes}, output__formats=formats))
    source = open_source(bench.volumes["models"] / model)
    structure = _structure(job.spec, source)
    if structure is not None:
        dropped, names = source.model.dropped, set(source.checkpoint.tensors)
        assert_partition(structure.layers, dropped, names)


def _structure(spec: JobSpec, source: Source) -> Structure | None:
    """None where nothing is left to quantize, or a format cannot hold what is."""
    try:
        return plan_structure(spec, source)
    except InvalidInput as refused:
        if refused.field != "spec.recipe" and not refused.field.startswith("spec.output.formats"):
            raise
        return None


def test_a_rotary_table_is_dropped_by_name(bench: Any, tmp_path: Path) -> None:
    folder = _changed(
        bench, tmp_path, {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    )
    plan: Plan = make_plan(_job(bench, folder), volumes=bench.volumes).plan
    assert plan.dropped == ("model.layers.1.self_attn.rotary_emb.inv_freq",)
    names = {t.name for layer in plan.layers for t in layer.source}
    assert_partition(plan.layers, plan.dropped, names | set(plan.dropped))


def test_a_tied_head_that_is_stored_all_the_same_passes_through(bench: Any, tmp_path: Path) -> None:
    folder = make_tiny_model(bench.volumes["models"] / "own", "llama", tied=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    formats = {"output__formats": list(FORMATS)}
    plan = make_plan(_job(bench, folder, **formats), volumes=bench.volumes).plan
    assert "lm_head.weight" in plan.layers[-1].passed_through
    assert plan.layers[-1].copies == {}
    assert_partition(plan.layers, (), set(tensors))


def test_formats_are_asked_about_every_scheme_in_use(bench: Any) -> None:
    job = resolve(
        bench.job(recipe={"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 32}})
    )
    source = open_source(bench.volumes["models"] / "llama")
    structure = plan_structure(job.spec, source)
    schemes = {x.name: x.scheme for y in structure.layers for s in y.sites for x in s.linears}
    both = job.spec.model_copy(
        update={"output": job.spec.output.model_copy(update={"formats": FORMATS})}
    )
    with pytest.raises(InvalidInput) as refused:
        check_formats(both, source.model, schemes)
    assert refused.value.field == "spec.output.formats[1]"


def _changed(bench: Any, tmp_path: Path, added: dict[str, torch.Tensor]) -> Path:
    """A checkpoint of its own, with further tensors."""
    folder: Path = make_tiny_model(bench.volumes["models"] / "own", "llama")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, **added}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _job(bench: Any, folder: Path, **changes: Any) -> Any:
    source = {"pvc": {"claimName": "models", "path": folder.name}}
    return bench.job(model__source=source, **changes)
