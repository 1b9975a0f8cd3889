"""The chart as helm renders it: golden files, its values, and what must hold for any of them."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import generate
from chart import CHART, REPOSITORY, helm, objects, of_kind, rendered
from quantfleet_api import crd
from quantfleet_operator.settings import Settings, settings_from
from quantfleet_server import settings as server_settings

pytestmark = pytest.mark.controlplane

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml"))


def values(name: str) -> tuple[str, str]:
    return "--values", str(GOLDEN / f"{name}.values.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_renders_are_the_golden_files(name: str, request: pytest.FixtureRequest) -> None:
    """To accept a change: delete the file, run the test, review what it wrote."""
    path = GOLDEN / f"{name}.yaml"
    text = rendered(*values(name))
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and is written anew: review it")
    assert text == path.read_text()


def test_lint_finds_nothing() -> None:
    for name in NAMES:
        told = helm("lint", "--strict", str(CHART), *values(name), "--kube-version", "1.34.4")
        assert "0 chart(s) failed" in told
        assert "[WARNING]" not in told


def test_definition_is_the_generated_one_and_is_kept() -> None:
    (found,) = of_kind(objects(), "CustomResourceDefinition")
    annotations = found["metadata"].pop("annotations")
    found["metadata"].pop("labels")
    ours = crd.definition()
    ours["metadata"].pop("annotations")

    assert found == ours
    assert annotations == {
        crd.SCHEMA_HASH_ANNOTATION: crd.schema_hash(),
        "helm.sh/resource-policy": "keep",
    }
    (unkept,) = of_kind(objects("--set", "crds.keep=false"), "CustomResourceDefinition")
    assert "helm.sh/resource-policy" not in unkept["metadata"]["annotations"]


@pytest.mark.parametrize("path", generate.generated(), ids=lambda path: path.name)
def test_generated_files_are_what_would_be_generated(path: Path) -> None:
    assert path.read_text() == generate.generated()[path], "run `make generate`"


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


def deployment(part: str, *options: str) -> dict[str, Any]:
    """The Deployment of the operator or of the server."""
    found = of_kind(objects(*options), "Deployment")
    (own,) = [entry for entry in found if entry["metadata"]["name"].endswith(f"-{part}")]
    return own


def environment(*options: str, part: str = "operator") -> dict[str, str]:
    (container,) = deployment(part, *options)["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_default_values_are_the_defaults_of_the_operator() -> None:
    read, own = settings_from(environment()), Settings()
    for name in ("namespaces", "restart_delay_seconds", "resync_seconds", "workers"):
        assert getattr(read, name) == getattr(own, name), name
    assert (read.liveness_port, read.metrics_port) == (8081, 8080)
    assert read.worker_image == "quantfleet-worker:0.1.0"
    assert read.progress_url == "https://qf-quantfleet-server.qf-system.svc:8443"
    assert (read.server_secret, read.server_namespace) == ("qf-quantfleet-server-tls", "qf-system")
    assert read.server_secret_managed is own.server_secret_managed


def test_default_values_are_the_defaults_of_the_server() -> None:
    read = server_settings.settings_from(environment(part="server"))
    assert read == server_settings.Settings(
        certificate_file=Path("/etc/quantfleet/tls/tls.crt"),
        key_file=Path("/etc/quantfleet/tls/tls.key"),
    )


def test_values_reach_the_server() -> None:
    read = server_settings.settings_from(environment(*values("everything"), part="server"))
    assert read.namespaces == ("alpha", "beta")
    assert (read.port, read.write_seconds, read.token_cache_seconds) == (9443, 5, 30)
    operator = settings_from(environment(*values("everything")))
    assert operator.progress_url.endswith(":9443")
    assert (operator.server_secret, operator.server_secret_managed) == ("given-tls", False)


def test_without_progress_nothing_of_the_server_is_there() -> None:
    options = ("--set", "progress.enabled=false")
    told = rendered(*options)
    for word in ("server", "tokenreviews", "subjectaccessreviews", "secrets", "PROGRESS"):
        assert word not in told.replace("API server", "").split("customresourcedefinitions")[-1]
    assert settings_from(environment(*options)).progress_url == ""


def test_certificate_is_the_operators_to_fill_and_its_key_no_business_of_the_server() -> None:
    found = objects()
    (secret,) = of_kind(found, "Secret")
    assert "data" not in secret
    (role,) = of_kind(found, "Role")
    assert role["metadata"]["namespace"] == "qf-system"
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["qf-quantfleet-server-tls"],
            "verbs": ["get", "patch"],
        }
    ]
    (volume,) = deployment("server")["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == "qf-quantfleet-server-tls"
    assert [item["key"] for item in volume["secret"]["items"]] == ["tls.crt", "tls.key"]
    given = objects("--set", "progress.existingSecret=mine")
    assert of_kind(given, "Secret") == []
    (role,) = of_kind(given, "Role")
    assert (role["rules"][0]["resourceNames"], role["rules"][0]["verbs"]) == (["mine"], ["get"])


def test_values_reach_the_operator() -> None:
    read = settings_from(environment(*values("everything")))
    assert read.namespaces == ("alpha", "beta")
    assert read.worker_image == "registry.example/worker:9.1"
    assert (read.restart_delay_seconds, read.resync_seconds, read.workers) == (1, 60, 2)
    assert (read.liveness_port, read.metrics_port) == (9001, 9002)


def named(role: dict[str, Any], part: str) -> bool:
    return str(role["metadata"]["name"]).endswith(f"-{part}")


def own_roles(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operator's ClusterRoles, without those for users."""
    roles = of_kind(found, "ClusterRole")
    return [role for role in roles if role["metadata"]["name"].endswith("operator")]


def test_a_list_of_namespaces_gives_rights_there_and_one_right_elsewhere() -> None:
    found = objects("--set", "watchNamespaces={alpha,beta}")
    roles = [role for role in of_kind(found, "Role") if named(role, "operator")]
    assert [role["metadata"]["namespace"] for role in roles] == ["alpha", "beta"]
    (elsewhere,) = own_roles(found)
    assert [rule["resources"] for rule in elsewhere["rules"]] == [["customresourcedefinitions"]]
    (everywhere,) = own_roles(objects())
    assert everywhere["rules"][1:] == roles[0]["rules"]
    assert not any(named(role, "operator") for role in of_kind(objects(), "Role"))


def test_a_list_of_namespaces_gives_the_server_rights_there_and_two_elsewhere() -> None:
    found = objects("--set", "watchNamespaces={alpha,beta}")
    roles = [role for role in of_kind(found, "Role") if named(role, "server")]
    assert [role["metadata"]["namespace"] for role in roles] == ["alpha", "beta"]
    (elsewhere,) = [role for role in of_kind(found, "ClusterRole") if named(role, "server")]
    asked = [(rule["resources"], rule["verbs"]) for rule in elsewhere["rules"]]
    assert asked == [(["tokenreviews"], ["create"]), (["subjectaccessreviews"], ["create"])]
    (everywhere,) = [role for role in of_kind(objects(), "ClusterRole") if named(role, "server")]
    assert everywhere["rules"][2:] == roles[0]["rules"]


def test_no_right_is_a_wildcard_or_on_secrets() -> None:
    for role in of_kind(objects(), "ClusterRole"):
        for rule in role["rules"]:
            told = json.dumps(rule)
            assert "*" not in told
            assert "secrets" not in told
            assert "exec" not in told


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("watchNamespaces=alpha", "watchNamespaces"),
        ("watchNamespaces={Alpha}", "watchNamespaces"),
        ("image.digest=sha256:5", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("metrics.port=0", "port"),
        ("progress.port=443", "port"),
        ("progress.tokenCacheSeconds=61", "tokenCacheSeconds"),
        ("operator.resyncSeconds=0", "resyncSeconds"),
        ("operator.replicas=2", "replicas"),
        ("crd.enabled=true", "crd"),
    ],
)
def test_values_that_are_refused(option: str, told: str) -> None:
    version = ("--kube-version", "1.34.4")
    answer = helm("template", "qf", str(CHART), *version, "--set", option, check=False)
    assert "values don't meet the specifications of the schema" in answer
    assert told in answer


def test_every_value_is_in_the_schema_and_in_the_readme() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    listed = {path for path, _, _ in generate.values()}

    def compare(node: dict[str, Any], known: dict[str, Any], path: str) -> None:
        for key, value in node.items():
            where = f"{path}.{key}".removeprefix(".")
            below = known["properties"][key]
            if where not in listed:
                compare(value, below, where)
        assert set(node) >= set(known["properties"]) - {"global", "claims"}

    compare(defaults, schema, "")
    assert len(listed) > 35


@pytest.mark.parametrize("part", ["operator", "server"])
def test_pods_meet_the_restricted_pod_security_standard(part: str) -> None:
    own = deployment(part)
    spec = own["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert own["spec"]["replicas"] == 1
    assert own["spec"]["strategy"] == {"type": "Recreate"}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = [set(volume) - {"name"} for volume in spec.get("volumes", ())]
    assert volumes == ([{"secret"}] if part == "server" else [])
