"""One accepted and one refused manifest for each rule of the CRD, and the server's answers.

The same manifests go to the models, which must agree. `ONLY_MODELS` says what a schema cannot: an
operator answers such a job with InvalidSpec.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from cluster_access import Cluster, Refused, path_of
from manifests import DELETE, Edits
from quantfleet_api.errors import InvalidInput
from quantfleet_api.loading import parse_job

NAMESPACE = "default"
STRICT = {"fieldValidation": "Strict", "dryRun": "All"}

ONLY_MODELS = {
    "a regular expression of Python": re.compile(r"must be a valid regular expression after 're:'"),
    "an integer written as 1.0, which JSON does not tell from 1": re.compile(
        r"must be an integer, got -?[0-9]+\.0$"
    ),
    "a status, which the server drops from a new object": re.compile("^status: unknown field"),
}
"""What only the models refuse, by the message that they give."""


@dataclass(frozen=True, kw_only=True)
class RuleCase:
    """Edits of the shortest manifest on either side of a rule, which is known by its message."""

    message: str
    accepted: Edits
    refused: Edits
    also: Edits = field(default_factory=dict)
    """Edits of both."""


def _recipe(**fields: Any) -> Edits:
    return {"spec.recipe": {"scheme": "W8A16", "weights": {"method": "RTN"}, **fields}}


PVC = {"claimName": "data", "path": "c.jsonl"}
CALIBRATION = {"source": {"pvc": PVC}, "sampleCount": 4, "sequenceLength": 8}
EVALUATION = {"source": {"pvc": PVC}, "windowCount": 1, "windowLength": 8}
CAL, SOURCE, WORK, RUN = "spec.calibration", "spec.model.source", "spec.workers", "spec.runPolicy"
ACTIVATIONS = {"observer": "Percentile", "percentile": "99"}
STATIC = {"targets": ["*"], "scheme": "W8A8"}
GPTQ = {"method": "GPTQ"}


def _case(message: str, accepted: Edits, refused: Edits, also: Edits | None = None) -> RuleCase:
    return RuleCase(message=message, accepted=accepted, refused=refused, also=also or {})


def _apart(name: str) -> list[RuleCase]:
    """Publishing and what `name` reads, in one claim; the output's path is "o"."""
    message = f"output.pvc.path must not hold what {name}.source reads"
    also = {} if name == "model" else {"spec.calibration": CALIBRATION}
    also |= {"spec.evaluation": EVALUATION} if name == "evaluation" else {}
    source = f"spec.{name}.source.pvc"
    return [
        _case(message, {source: {"claimName": "out", "path": near}}, {source: inside}, also)
        for near, inside in (
            ("of", {"claimName": "out", "path": "o"}),
            ("o.works", {"claimName": "out", "path": "o.work/x"}),
            ("", {"claimName": "out", "path": "o.rejected"}),
        )
    ]


CREATE = [
    _case("metadata.name must start with", {"metadata.name": "a-1"}, {"metadata.name": "1-a"}),
    _case("metadata.name must start with", {"metadata.name": "a1"}, {"metadata.name": "a.b"}),
    _case("at most 46", {"metadata.name": "a" * 46}, {"metadata.name": "a" * 47}),
    _case("give exactly one of pvc", {SOURCE: {"pvc": PVC}}, {SOURCE: {}}),
    _case(
        "give exactly one of smoothQuant",
        _recipe(transforms=[{"smoothQuant": {}}]),
        _recipe(transforms=[{}]),
        {CAL: CALIBRATION},
    ),
    _case(
        "code that comes with a model is never run",
        {"spec.model.trustRemoteCode": False},
        {"spec.model.trustRemoteCode": True},
    ),
    *[
        _case("must be a relative path", {f"{SOURCE}.pvc.path": good}, {f"{SOURCE}.pvc.path": bad})
        for good, bad in (("a/..b", "a/../b"), ("", "/"), (".a", "."), ("a/b", "a//b"))
    ],
    _case("must be a relative path", {"spec.output.pvc.path": "a"}, {"spec.output.pvc.path": "a/"}),
    *[
        _case(
            "must hold printable characters only",
            {"spec.output.pvc.path": f"a{good}"},
            {"spec.output.pvc.path": f"a{bad}"},
        )
        for good, bad in ((" b", "\n"), ("\u00e9", "\u200b"), ("\U00020000", "\U000e0001"))
    ],
    _case(
        "must be a decimal number above 0 below 1",
        {"spec.recipe.weights": {**GPTQ, "gptq": {"dampening": "0.999"}}},
        {"spec.recipe.weights": {**GPTQ, "gptq": {"dampening": "1"}}},
        {CAL: CALIBRATION},
    ),
    _case(
        "must be a decimal number above 50 to 100",
        _recipe(scheme="W8A8", activations={"percentile": "50.0000000000001"}),
        _recipe(scheme="W8A8", activations={"percentile": "50"}),
        {CAL: CALIBRATION},
    ),
    _case(
        "must be a decimal number from 0 to 1",
        _recipe(transforms=[{"smoothQuant": {"alpha": "1.0"}}]),
        _recipe(transforms=[{"smoothQuant": {"alpha": "1.00000000000001"}}]),
        {CAL: CALIBRATION},
    ),
    _case(
        "must be a decimal number above 0 to 1000000",
        {"spec.evaluation": {**EVALUATION, "maxPerplexityRatio": "0.00000000000001"}},
        {"spec.evaluation": {**EVALUATION, "maxPerplexityRatio": "0.0"}},
    ),
    _case(
        "each key must match",
        {f"{WORK}.nodeSelector": {"a.b/c": ""}},
        {f"{WORK}.nodeSelector": {"/c": ""}},
    ),
    _case(
        "gptq is only allowed with method GPTQ",
        {"spec.recipe.weights": {"method": "GPTQ", "gptq": {}}},
        {"spec.recipe.weights": {"method": "RTN", "gptq": {}}},
        {CAL: CALIBRATION},
    ),
    _case(
        "weights.groupSize must be 0",
        _recipe(weights={"method": "RTN", "groupSize": 128}),
        _recipe(scheme="W8A8Dynamic", weights={"method": "RTN", "groupSize": 128}),
    ),
    _case(
        "weights.symmetric must be true",
        _recipe(weights={"method": "RTN", "symmetric": False}),
        _recipe(scheme="W8A8Dynamic", weights={"method": "RTN", "symmetric": False}),
    ),
    _case(
        "activations are only allowed with the static scheme",
        _recipe(activations=ACTIVATIONS, overrides=[STATIC]),
        _recipe(activations=ACTIVATIONS),
        {CAL: CALIBRATION},
    ),
    _case(
        "smoothQuant at most once",
        _recipe(transforms=[{"smoothQuant": {}}]),
        _recipe(transforms=[{"smoothQuant": {}}, {"smoothQuant": {}}]),
        {CAL: CALIBRATION},
    ),
    *[
        _case("calibration is required", {CAL: CALIBRATION}, {}, _recipe(**needs))
        for needs in (
            {"weights": GPTQ},
            {"transforms": [{"smoothQuant": {}}]},
            {"scheme": "W8A8"},
            {"overrides": [STATIC]},
        )
    ],
    _case(
        "minTokens must be at most sequenceLength",
        {f"{CAL}.minTokens": 8},
        {f"{CAL}.minTokens": 9},
        {CAL: CALIBRATION},
    ),
    _case(
        "deviceResourceName is required",
        {WORK: {"devicesPerWorker": 1, "deviceResourceName": "nvidia.com/gpu"}},
        {WORK: {"devicesPerWorker": 1}},
    ),
    _case(
        "devicesPerWorker must be at least 1",
        {WORK: {"devicesPerWorker": 1, "deviceResourceName": "nvidia.com/gpu"}},
        {WORK: {"deviceResourceName": "nvidia.com/gpu"}},
    ),
    _case(
        "processesPerWorker must be at most devicesPerWorker",
        {f"{WORK}.processesPerWorker": 2},
        {f"{WORK}.processesPerWorker": 3},
        {WORK: {"devicesPerWorker": 2, "deviceResourceName": "nvidia.com/gpu"}},
    ),
    *_apart("model"),
    *_apart("calibration"),
    *_apart("evaluation"),
    # no rule in CEL, but keywords whose reading could differ
    _case("env", {f"{WORK}.env": [{"name": "A"}]}, {f"{WORK}.env": [{"name": "A"}] * 2}),
    _case("formats", {"spec.output.formats": ["Ascend"]}, {"spec.output.formats": ["Ascend"] * 2}),
    _case(
        "scheme",
        _recipe(overrides=[{"targets": ["a"], "scheme": "None"}]),
        _recipe(overrides=[{"targets": ["a"], "scheme": None}]),
    ),
    _case(
        "scheme",
        _recipe(overrides=[{"targets": ["a"], "scheme": "W4A16"}]),
        _recipe(overrides=[{"targets": ["a"]}]),
    ),
    _case("count", {f"{WORK}.count": 10_000}, {f"{WORK}.count": 10_001}),
    _case("count", {f"{WORK}.count": None}, {f"{WORK}.count": 0}),
    _case("seed", {f"{CAL}.seed": 2**53 - 1}, {f"{CAL}.seed": 2**53}, {CAL: CALIBRATION}),
    _case("backoffLimit", {f"{RUN}.backoffLimit": 998}, {f"{RUN}.backoffLimit": -1}),
    _case("suspend", {RUN: {"suspend": None}}, {RUN: {"suspend": "no"}}),
    _case(
        "nodeSelector", {f"{WORK}.nodeSelector": {"a": None}}, {f"{WORK}.nodeSelector": {"a": 1}}
    ),
    _case("ignore", {"spec.recipe.ignore": ["a"] * 1024}, {"spec.recipe.ignore": ["a"] * 1025}),
    _case("ignore", {"spec.recipe.ignore": None}, {"spec.recipe.ignore": [None]}),
    _case("hostPath", {WORK: {}}, {f"{WORK}.hostPath": "/"}),
    _case("spec.output", {}, {"spec.output": DELETE}),
]
"""Creations."""


def server_refuses(cluster: Cluster, manifest: dict[str, Any]) -> str | None:
    """What the API server says against creating it, as one that knows all fields; None if it would.

    A dry run: nothing is stored.
    """
    try:
        path = path_of("quantizationjobs", namespace=NAMESPACE)
        cluster.access.call("POST", path, manifest, query=STRICT)
    except Refused as refused:
        if refused.status not in (400, 422):
            raise
        return refused.message
    return None


def models_refuse(manifest: dict[str, Any]) -> str | None:
    """What the models say against it, as they would read it from a server or a file."""
    try:
        parse_job(json.loads(json.dumps(manifest)))
    except InvalidInput as refused:
        return str(refused)
    return None


def only_models_refuse(message: str) -> bool:
    """Whether the schema cannot say what this message of the models says."""
    return any(pattern.search(message) for pattern in ONLY_MODELS.values())
