"""The generated CRD: as it lies in the repository, complete and bounded everywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_access import Cluster
from quantfleet_api import crd

FILE = Path(__file__).resolve().parents[2] / "crds" / "quantizationjobs.yaml"


def fields(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a schema below `node`, by its path."""
    for name, entry in node.get("properties", {}).items():
        yield f"{path}.{name}", entry
        yield from fields(entry, f"{path}.{name}")
    for keyword, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if keyword in node:
            yield f"{path}{mark}", node[keyword]
            yield from fields(node[keyword], f"{path}{mark}")


def described() -> list[tuple[str, dict[str, Any]]]:
    """What we say of a job: spec and status."""
    parts = crd.schema()["properties"]
    return [
        found
        for part in ("spec", "status")
        for found in [(part, parts[part]), *fields(parts[part], part)]
    ]


def test_file_is_what_the_models_give() -> None:
    assert FILE.read_text() == crd.as_yaml(), "run `make generate`"


def test_hash_in_the_file_is_the_schemas() -> None:
    written = yaml.safe_load(FILE.read_text())
    assert written["metadata"]["annotations"] == {crd.SCHEMA_HASH_ANNOTATION: crd.schema_hash()}


def test_hash_follows_every_change_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    before = crd.schema_hash()
    other = crd.schema()
    other["properties"]["status"]["properties"].pop("phase")
    monkeypatch.setattr(crd, "schema", lambda: other)
    assert crd.schema_hash() != before


def test_every_field_says_what_it_does() -> None:
    assert len(described()) > 200
    assert [
        path
        for path, node in described()
        if not path.endswith(("[]", "{}")) and len(node.get("description", "")) < 8
    ] == []


LIMITS = {
    "string": {"maxLength", "enum"},
    "array": {"maxItems"},
    "object": {"properties", "maxProperties"},
}
"""Keywords of which one bounds a type; what has no entry is bounded by itself."""


def test_everything_has_a_maximum() -> None:
    assert [
        path
        for path, node in described()
        if node["type"] in LIMITS and LIMITS[node["type"]].isdisjoint(node)
    ] == []


def test_every_list_says_how_it_is_merged_and_every_integer_how_wide_it_is() -> None:
    for path, node in described():
        if node["type"] == "array":
            assert node["x-kubernetes-list-type"] in ("atomic", "set", "map"), path
        if node["type"] == "integer":
            assert node["format"] in ("int32", "int64"), path
            assert node.get("minimum", -(2**31)) <= node.get("maximum", 2**53) <= 2**53, path


def test_no_field_of_a_status_has_a_default() -> None:
    assert [
        path for path, node in described() if path.startswith("status") and "default" in node
    ] == []


@pytest.mark.controlplane
def test_server_takes_the_whole_definition(cluster: Cluster) -> None:
    live = cluster.get("customresourcedefinitions", "quantizationjobs.quantfleet.io")
    conditions = {entry["type"]: entry["status"] for entry in live["status"]["conditions"]}

    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions
    ours = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert live["spec"]["versions"][0]["schema"]["openAPIV3Schema"] == ours


@pytest.mark.controlplane
def test_people_see_columns_and_find_the_short_name(cluster: Cluster, namespace: str) -> None:
    table = cluster.kubectl("get", "qj", "-n", namespace, "-o", "wide")
    assert "No resources found" in table
    job = (FILE.parents[1] / "examples" / "smollm2-w8a8.yaml").read_text()
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=job)

    head, row = cluster.kubectl("get", "quantfleet", "-n", namespace, "-o", "wide").splitlines()
    columns = "NAME PHASE PROGRESS ETA WORKERS ATTEMPT SCHEME OUTPUT AGE".split()
    assert head.split() == columns
    assert row.split()[:3] == ["smollm2-w8a8", "W8A8", "smollm2-w8a8"]
    explained = cluster.kubectl("explain", "qj.spec.recipe.weights.groupSize")
    assert "Input columns that share a scale" in " ".join(explained.split())
