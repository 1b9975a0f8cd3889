"""Manifests that are good: what they say, what their files may look like, what comes back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from quantfleet_api.errors import InvalidInput
from quantfleet_api.loading import load_job, parse_job
from quantfleet_api.spec import Checkpoint, QuantizationJob, RunPolicy, Workers, resolve

Build = Callable[..., dict[str, Any]]


def test_full_manifest_comes_back_as_written(full_job: Path) -> None:
    job = load_job(full_job)

    assert job.model_dump(mode="json", by_alias=True, exclude_unset=True) == yaml.safe_load(
        full_job.read_text()
    )


def test_full_manifest_is_already_resolved(full_job: Path) -> None:
    job = load_job(full_job)

    assert resolve(job) == job


def test_defaults_are_those_of_the_full_manifest(full_job: Path, minimal: Build) -> None:
    written = load_job(full_job).spec
    assert written.calibration is not None
    calibration = {"source": {"pvc": {"claimName": "c"}}, "sampleCount": 1, "sequenceLength": 2}
    spec = parse_job(minimal({"spec.calibration": calibration})).spec
    assert spec.calibration is not None

    own = ("source", "sample_count", "sequence_length")
    assert spec.calibration.model_dump(exclude=set(own)) == written.calibration.model_dump(
        exclude=set(own)
    )
    assert spec.checkpoint == written.checkpoint == Checkpoint()
    assert spec.recipe.ignore == written.recipe.ignore == ("lm_head",)
    assert spec.recipe.warnings == written.recipe.warnings
    assert spec.output.overwrite_policy == written.output.overwrite_policy
    assert spec.model.trust_remote_code is False
    assert spec.workers == Workers()
    assert spec.workers.count is None
    assert spec.workers.threads_per_process == written.workers.threads_per_process
    assert spec.run_policy == RunPolicy()
    assert spec.evaluation is None


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {"spec.calibration": None},
        {"spec.recipe.scheme": "W8A16"},
        {"spec.recipe.scheme": "W8A16", "spec.recipe.weights.groupSize": 32},
        {"spec.recipe.scheme": "W4A16", "spec.recipe.weights.symmetric": False},
        {"spec.recipe.ignore": []},
        {"spec.recipe.ignore": [r"re:.*\.[kv]_proj$"]},
        {"spec.recipe.overrides": [{"targets": ["*"], "scheme": "None"}]},
        {"spec.recipe.transforms": None},
        {"spec.recipe.weights.symmetric": None},
        {"spec.workers": {"nodeSelector": {"a": None}}},
        {"spec.model.source.pvc": {"claimName": "models"}},
        {"spec.output.pvc": {"claimName": "models", "path": "m-w8a8"}},
        {"spec.workers": {"count": 3, "env": [{"name": "A", "value": ""}]}},
        {"metadata.name": "a" * 46},
    ],
    ids=repr,
)
def test_manifest_is_accepted(minimal: Build, edits: dict[str, object]) -> None:
    assert isinstance(parse_job(minimal(edits)), QuantizationJob)


def test_scheme_none_survives_a_round_trip(minimal: Build) -> None:
    job = parse_job(minimal({"spec.recipe.overrides": [{"targets": ["a"], "scheme": "None"}]}))

    assert job.spec.recipe.overrides[0].scheme is None
    assert parse_job(job.model_dump(mode="json", by_alias=True)) == job
    assert QuantizationJob.model_validate_json(job.model_dump_json()) == job


def test_python_names_are_refused_in_a_manifest(minimal: Build) -> None:
    document = minimal()
    document["api_version"] = document.pop("apiVersion")

    with pytest.raises(InvalidInput, match=r"^api_version: .* did you mean 'apiVersion'"):
        parse_job(document)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must hold one document, not 0"),
        (b"- a\n", "must be a mapping with apiVersion"),
        (b"a: 1\n---\nb: 2\n", "must hold one document, not 2"),
        (b"a: {", "must be valid YAML .*line 1"),
        (b"a: 1\nb: [\n  2\na: 3\n", "must be valid YAML .*line 4"),
        (b"kind: \xff\n", r"must be UTF-8 text \(byte 6 is not\)"),
        (b"a: \x01\n", "must be valid YAML"),
        (b"a: 1\na: 2\n", "the key 'a' is there twice at line 2, column 1"),
        (b"a: &x [1]\nb: *x\n", "aliases are not allowed at line 2, column 4"),
        (b"? [a]\n: 1\n", "must be valid YAML"),
        (b"a: !!python/object:os.system 1\n", "must be valid YAML"),
        (b"a: 2024-13-45\n", "must be valid YAML"),
        (b"a: 0x" + b"f" * 5000, "integers have at most 64 bits at line 1, column 4"),
        (b"[" * 5000, "must be valid YAML"),
        (b"#" * (1 << 20) + b"\n", "must have at most 1048576 bytes"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
def test_file_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)

    with pytest.raises(InvalidInput, match=message) as caught:
        load_job(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_path_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="manifest: must be a readable file"):
        load_job(tmp_path / name)


def test_json_and_byte_order_mark_are_read(tmp_path: Path, full_job: Path) -> None:
    path = tmp_path / "job.json"
    job = load_job(full_job)
    path.write_text(job.model_dump_json(by_alias=True), encoding="utf-8-sig")

    assert load_job(path) == job


def _decimals(low: int, high: int) -> st.SearchStrategy[str]:
    """Decimal strings of two places, between low and high hundredths."""
    return st.integers(low, high).map(lambda number: f"{number // 100}.{number % 100:02d}")


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,44}[a-z0-9])?", fullmatch=True)
TARGETS = st.lists(st.text("abc.*[]_", min_size=1), min_size=1, max_size=3)
SCHEMES = st.sampled_from(["W8A8", "W8A8Dynamic", "W8A16", "W4A16"])
RECIPES = st.fixed_dictionaries(
    {
        "scheme": SCHEMES,
        "weights": st.sampled_from([{"method": "RTN"}, {"method": "GPTQ"}])
        | st.builds(
            lambda block, dampening, order: {
                "method": "GPTQ",
                "gptq": {"blockSize": block, "dampening": dampening, "activationOrder": order},
            },
            st.integers(1, 8192),
            _decimals(1, 99),
            st.booleans(),
        ),
    },
    optional={
        "transforms": st.lists(
            st.fixed_dictionaries(
                {"smoothQuant": st.fixed_dictionaries({}, optional={"alpha": _decimals(0, 100)})}
            ),
            max_size=1,
        ),
        "overrides": st.lists(
            st.fixed_dictionaries({"targets": TARGETS, "scheme": SCHEMES | st.just("None")}),
            max_size=3,
        ),
        "ignore": TARGETS,
        "propagation": st.sampled_from(["Float", "Quantized"]),
        "warnings": st.sampled_from(["Report", "Fail"]),
    },
)
CALIBRATIONS = st.builds(
    lambda samples, least, more, rest: {
        "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
        "sampleCount": samples,
        "minTokens": least,
        "sequenceLength": least + more,
        **rest,
    },
    st.integers(1, 10**6),
    st.integers(1, 10**4),
    st.integers(0, 10**4),
    st.fixed_dictionaries(
        {},
        optional={
            "textField": st.sampled_from(["text", "messages", "inputs_pretokenized"]),
            "concatenate": st.booleans(),
            "batchSize": st.integers(1, 64),
            "shuffle": st.sampled_from(["Never", "Seeded"]),
            "seed": st.integers(0, 2**53 - 1),
        },
    ),
)


@settings(max_examples=200, deadline=None)
@given(recipe=RECIPES, calibration=CALIBRATIONS, name=NAMES, ratio=_decimals(1, 1000))
def test_any_good_manifest_survives_every_round_trip(
    recipe: dict[str, Any], calibration: dict[str, Any], name: str, ratio: str
) -> None:
    document = {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"pvc": {"claimName": "models", "path": "m"}}},
            "calibration": calibration,
            "recipe": recipe,
            "output": {"pvc": {"claimName": "out", "path": "o"}, "formats": ["CompressedTensors"]},
            "evaluation": {
                "source": {"pvc": {"claimName": "data", "path": "eval.jsonl"}},
                "windowCount": 1,
                "windowLength": 2,
                "maxPerplexityRatio": ratio,
            },
        },
    }
    job = parse_job(document)
    resolved = resolve(job)

    assert parse_job(yaml.safe_load(yaml.safe_dump(document))) == job
    for value in (job, resolved):
        assert parse_job(value.model_dump(mode="json", by_alias=True)) == value
        assert QuantizationJob.model_validate_json(value.model_dump_json()) == value
    assert resolve(resolved) == resolved
