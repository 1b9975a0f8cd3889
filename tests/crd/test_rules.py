"""Every rule for new jobs at work on a real API server, beside the models, which say the same."""

from typing import Any

import pytest

from cluster_access import Cluster
from crd_cases import (
    CREATE,
    ONLY_MODELS,
    RuleCase,
    models_refuse,
    only_models_refuse,
    server_refuses,
)
from manifests import Edits, full, minimal
from quantfleet_api.crd import schema
from refused_manifests import SEVERAL_FIELDS, SINGLE_FIELD

pytestmark = pytest.mark.controlplane


def rules(node: Any) -> list[str]:
    """Messages of all CEL rules in a schema."""
    if isinstance(node, list):
        return [message for entry in node for message in rules(entry)]
    if not isinstance(node, dict):
        return []
    own = [rule["message"] for rule in node.get("x-kubernetes-validations", ())]
    return own + [message for entry in node.values() for message in rules(entry)]


@pytest.mark.parametrize("case", CREATE, ids=lambda case: case.message)
def test_both_sides_of_a_rule(cluster: Cluster, case: RuleCase) -> None:
    good = minimal({**case.also, **case.accepted})
    bad = minimal({**case.also, **case.refused})

    assert server_refuses(cluster, good) is None
    assert models_refuse(good) is None
    assert case.message in (server_refuses(cluster, bad) or "")
    assert models_refuse(bad) is not None


def test_every_rule_for_new_jobs_has_a_case() -> None:
    written = {message for message in rules(schema()["properties"]["spec"])} | {
        message for message in rules(schema()) if message.startswith("metadata.name")
    }
    for_new = {message for message in written if "cannot be changed" not in message}
    covered = {message for message in for_new if any(case.message in message for case in CREATE)}
    assert covered == for_new
    assert len(covered) > 20


@pytest.mark.parametrize(
    "edits", [edits for edits, _ in SINGLE_FIELD + SEVERAL_FIELDS], ids="+".join
)
def test_what_the_models_refuse_the_server_refuses(cluster: Cluster, edits: Edits) -> None:
    told = models_refuse(full(edits))
    assert told is not None
    if only_models_refuse(told):
        assert server_refuses(cluster, full(edits)) is None
    else:
        assert server_refuses(cluster, full(edits)) is not None


@pytest.mark.parametrize("what", ONLY_MODELS)
def test_what_only_the_models_refuse_occurs(what: str) -> None:
    """So that the list of exceptions holds nothing that a schema does say."""
    told = [models_refuse(full(edits)) or "" for edits, _ in SINGLE_FIELD]
    assert any(ONLY_MODELS[what].search(message) for message in told)


def test_full_manifest_is_accepted_as_it_is(cluster: Cluster) -> None:
    assert server_refuses(cluster, full()) is None
