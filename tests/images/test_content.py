"""What is in the images: a user without rights, no compiler, and what the bill says."""

import json
import tarfile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from build_images import tag_of
from containers import BuiltImage

pytestmark = pytest.mark.cluster

USERS = {"quantfleet-worker": "1000:1000", "quantfleet-operator": "65532:65532"}
TOOLS = "gcc cc c++ g++ cpp clang as ld make cmake ninja rustc go nvcc pip pip3 uv git"
PACKAGES = {
    "quantfleet-worker": ("torch", "transformers", "pydantic", "compressed-tensors", "numpy"),
    "quantfleet-operator": ("kopf", "kubernetes", "pydantic"),
}
VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def test_the_user_is_without_rights(image: BuiltImage) -> None:
    done = image.run("sh", "-c", "id -u; id -g; grep CapEff /proc/self/status")
    user, group = USERS[image.image.name].split(":")
    assert done.stdout.split() == [user, group, "CapEff:", "0000000000000000"], done.stderr
    assert image.inspect()["Config"]["User"] == USERS[image.image.name]


def test_there_is_no_compiler_and_no_installer(image: BuiltImage) -> None:
    done = image.run("sh", "-c", f"for t in sh {TOOLS}; do command -v $t; done; true")
    assert done.stdout.split() == ["/usr/bin/sh"], done.stderr


def test_nothing_of_ours_can_be_written_by_its_user(image: BuiltImage) -> None:
    find = "find / -xdev ( -writable -o -perm -0002 ) ! -type l ! -path /proc/* ! -path /dev/*"
    done = image.run(*find.split(), "-print", "-prune")
    listed = {path for path in done.stdout.split() if not path.startswith(("/proc", "/sys"))}
    # places that any user may write are Debian's own; all but /tmp are read-only in a pod
    assert listed <= {"/tmp", "/var/tmp", "/run/lock", "/var/lock", "/run/.containerenv"}


def test_caches_of_pip_are_absent_and_all_is_compiled(image: BuiltImage) -> None:
    """Without its compiled form each process would compile torch's and our sources anew."""
    script = (
        "find / -xdev -path '*/.cache/*' 2>/dev/null; cd /opt/quantfleet/lib;"
        "find . -name '*.py' | wc -l; find . -name '*.pyc' | wc -l"
    )
    sources, compiled = image.run("sh", "-c", script).stdout.split()
    assert int(sources) > 100
    # a few files of others are for Pythons that are not this one
    assert 0.99 * int(sources) <= int(compiled) <= int(sources)


def test_the_bill_lists_what_python_sees(image: BuiltImage) -> None:
    names = PACKAGES[image.image.name]
    versions = json.loads(image.run("python", "-c", VERSIONS, *names).stdout)
    bill = json.loads(image.bill.read_text())
    listed = {
        part["name"]: part["version"]
        for part in bill["components"]
        if part["purl"].startswith("pkg:pypi/")
    }
    assert {name: listed.get(name) for name in names} == versions
    own = json.loads(image.run("python", "-c", VERSIONS, "quantfleet").stdout)["quantfleet"]
    assert bill["metadata"]["component"]["version"] == own


def test_the_bill_lists_the_packages_of_the_system(image: BuiltImage) -> None:
    form = "${Package} ${Version}\n"
    inside = image.run("dpkg-query", "--show", "--showformat", form).stdout.splitlines()
    listed = {
        f"{part['name']} {part['version']}"
        for part in json.loads(image.bill.read_text())["components"]
        if part["purl"].startswith("pkg:deb/debian/")
    }
    assert "python3 " in " ".join(sorted(listed))
    assert set(inside) == listed


def test_the_bill_is_valid_and_the_one_in_the_image(image: BuiltImage) -> None:
    text = image.bill.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert image.run("cat", "/usr/share/quantfleet/sbom.cdx.json").stdout == text


def test_the_archive_has_the_name_that_a_kubelet_asks_for(image: BuiltImage) -> None:
    with tarfile.open(image.archive) as archive:
        index = json.load(archive.extractfile("index.json") or pytest.fail("no index"))
    (manifest,) = index["manifests"]
    assert manifest["annotations"]["org.opencontainers.image.ref.name"] == tag_of(image.image)
