"""Manifests drawn from the CRD's schema: mostly good ones, and what is wrong in many ways.

Drawn from the schema and not from the models, so that a field that only one of the two knows is
found. Rules between fields are left to chance, which breaks them often enough.
"""

import copy
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
Draw = st.DrawFn

CHARACTERS = st.characters(exclude_categories=["Cs"])  # JSON carries no lone surrogates
TEXT = st.text(CHARACTERS, max_size=12)
PATHS = st.sampled_from(["", "a", "a/b.c", ".a/b", "o.works", "\u00e9 x"])
BAD_PATHS = st.sampled_from(["..", "a/../b", "/a", "a//b", "a/", "o.work/x", "o", "a\u200b"])
NAMES = st.sampled_from(["b" * 46, "b" * 47, "1a", "A", "a.b", "a-", ""])
CLAIMS = st.sampled_from(["models", "data", "out"])
DECIMALS = st.sampled_from(["0", "0.5", "1", "50", "99.9", "100", "1.0", "0.01", "1000000.1", "01"])
TARGETS = st.sampled_from(["lm_head", "*.q_proj", "re:.*down.*", "a" * 512])
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.sampled_from([0.5, 64.0, 1e300]),
    TEXT,
    st.lists(TEXT, max_size=2),
    st.dictionaries(TEXT, TEXT, max_size=2),
)


@st.composite
def manifests(draw: Draw, schema: Schema) -> dict[str, Any]:
    """A manifest, with up to two places spoilt."""
    manifest: dict[str, Any] = {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": draw(NAMES if draw(st.integers(0, 9)) == 0 else st.just("small"))},
        "spec": draw(_values(schema["properties"]["spec"], "spec")),
    }
    if draw(st.integers(0, 3)):
        mend(manifest["spec"])
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        _spoil(draw, manifest["spec"], schema["properties"]["spec"])
    return manifest


CALIBRATION = {"source": {"pvc": {"claimName": "data"}}, "sampleCount": 4, "sequenceLength": 8}


def mend(spec: dict[str, Any]) -> None:
    """Make a spec follow the rules between fields, in place."""
    recipe, workers = spec["recipe"], spec.get("workers", {})
    weights = recipe["weights"]
    named = [recipe["scheme"], *(entry["scheme"] for entry in recipe.get("overrides", []))]
    recipe["transforms"] = recipe.get("transforms", [])[:1]
    if "W8A8" not in named:
        recipe.pop("activations", None)
    if recipe["scheme"].startswith("W8A8"):
        weights |= {"groupSize": 0, "symmetric": True}
    if weights["method"] == "RTN":
        weights.pop("gptq", None)
    if weights["method"] == "GPTQ" or recipe["transforms"] or "W8A8" in named:
        spec.setdefault("calibration", copy.deepcopy(CALIBRATION))
    if "calibration" in spec:
        spec["calibration"]["minTokens"] = 1
    for part in ("model", "calibration", "evaluation"):
        if part in spec:
            spec[part]["source"]["pvc"]["claimName"] = "data"
    spec["output"]["pvc"] = {"claimName": "out", "path": "o"}
    spec["output"]["formats"] = sorted(set(spec["output"]["formats"]))
    _mend_decimals(spec)
    for name in ("deviceResourceName", "devicesPerWorker", "env"):
        workers.pop(name, None)


def _mend_decimals(spec: dict[str, Any]) -> None:
    recipe = spec["recipe"]
    if "gptq" in recipe["weights"]:
        recipe["weights"]["gptq"]["dampening"] = "0.05"
    if "activations" in recipe:
        recipe["activations"]["percentile"] = "99"
    for step in recipe["transforms"]:
        step["smoothQuant"]["alpha"] = "1"
    if "evaluation" in spec:
        spec["evaluation"]["maxPerplexityRatio"] = "2"


def _values(schema: Schema, name: str) -> st.SearchStrategy[Any]:
    """Values that a node of the schema accepts, but for its rules in CEL."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object" if "properties" in schema:
            return _objects(schema)
        case "object":
            keys = st.from_regex(r"\A([a-z]{1,3}\.io/)?[a-z]([-a-z]{0,3}[a-z])?\Z")
            return st.dictionaries(keys, _values(schema["additionalProperties"], name), max_size=2)
        case "array":
            items = _values(schema["items"], name)
            return st.lists(items, min_size=schema.get("minItems", 0), max_size=2)
        case "integer":
            return _integers(schema)
        case "boolean":
            return st.booleans() if name != "trustRemoteCode" else st.just(False)
    return _strings(schema, name)


@st.composite
def _objects(draw: Draw, schema: Schema) -> dict[str, Any]:
    required = set(schema.get("required", ()))
    union = any("exists_one" in rule["rule"] for rule in schema.get("x-kubernetes-validations", ()))
    names = [
        name
        for name in schema["properties"]
        if name in required or union or draw(st.integers(0, 3)) == 0
    ]
    return {name: draw(_values(schema["properties"][name], name)) for name in names}


def _integers(schema: Schema) -> st.SearchStrategy[int]:
    least, most = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31)
    return st.sampled_from([least, most]) | st.integers(least, min(most, least + 8))


def _strings(schema: Schema, name: str) -> st.SearchStrategy[str]:
    special = {"path": PATHS, "claimName": CLAIMS, "targets": TARGETS, "ignore": TARGETS}
    if name in special:
        return special[name]
    if "double(self)" in str(schema.get("x-kubernetes-validations")):
        return DECIMALS
    least, most = schema.get("minLength", 0), schema["maxLength"]
    if "pattern" in schema:
        return st.from_regex(
            schema["pattern"].replace("$", r"\Z"), alphabet=st.characters(codec="ascii")
        ).filter(lambda text: least <= len(text) <= most)
    return st.text(CHARACTERS, min_size=least, max_size=min(most, 8))


def _spoil(draw: Draw, node: Any, schema: Schema) -> None:
    """Change something in `node`, at a depth that is drawn."""
    while True:
        steps = _steps(node)
        if not steps or (draw(st.integers(0, 3)) == 0 and isinstance(node, dict)):
            break
        key = draw(st.sampled_from(steps))
        below = _below(schema, key)
        if below is None or not _steps(node[key]) or draw(st.integers(0, 2)) == 0:
            node[key] = draw(_spoilt(node[key], below))
            return
        node, schema = node[key], below
    if isinstance(node, dict):
        _spoil_object(draw, node, schema)


def _spoil_object(draw: Draw, node: dict[str, Any], schema: Schema) -> None:
    """Drop a field, add an unknown one, or set one that is known to anything at all."""
    match draw(st.sampled_from(["drop", "unknown", "null", "junk"])):
        case "drop" if node:
            del node[draw(st.sampled_from(sorted(node)))]
        case "unknown":
            node[draw(st.sampled_from(["bogus", "Path", "group_size", "status", "\u200b"]))] = draw(
                JUNK
            )
        case "null" if "properties" in schema:
            node[draw(st.sampled_from(list(schema["properties"])))] = None
        case _:
            names = list(schema.get("properties", ["x"]))
            node[draw(st.sampled_from(names))] = draw(JUNK)


def _spoilt(value: Any, schema: Schema | None) -> st.SearchStrategy[Any]:
    """Another value in the place of `value`: of another type, or just beyond what is allowed."""
    choices = [JUNK]
    limits = schema or {}
    if isinstance(value, str):
        most = limits.get("maxLength", 20)
        choices += [TEXT, st.just("a" * most), st.just("a" * (most + 1)), st.just(f"{value}\n")]
        choices += [BAD_PATHS, DECIMALS, st.sampled_from(["re:(", "re:", "None", "none"])]
    elif isinstance(value, int) and not isinstance(value, bool):
        bounds = [limits[key] for key in ("minimum", "maximum") if key in limits]
        choices += [
            st.sampled_from([bound + step for bound in bounds or [value] for step in (-1, 0, 1)])
        ]
    elif isinstance(value, list):
        most = limits.get("maxItems", 8)
        doubled = [copy.deepcopy(entry) for entry in value for _ in range(2)]
        choices += [st.just([]), st.just(doubled), st.just((value or [None])[:1] * (most + 1))]
    elif isinstance(value, dict):
        choices += [st.just({}), st.just({**value, "a b": "x"})]
    return st.one_of(choices)


def _steps(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return sorted(node)
    return list(range(len(node))) if isinstance(node, list) else []


def _below(schema: Schema, key: Any) -> Schema | None:
    if isinstance(key, int):
        return schema.get("items")
    found: Schema | None = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
    return found
