"""A second build gives the same layers, and what it was told in secret is in none of them."""

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import build_images
from containers import BuiltImage, podman

pytestmark = [pytest.mark.cluster, pytest.mark.soak]


@pytest.fixture(
    scope="module",
    params=["quantfleet-operator", "quantfleet-worker"],
)
def again(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BuiltImage, str, str]]:
    """An image, the tag of its second build from nothing, and a word that its pip.conf held."""
    found = request.getfixturevalue(request.param.removeprefix("quantfleet-"))
    word, folder = secrets.token_hex(16), build_images.images_folder()
    prefix = build_images.podman_command(folder)
    base = build_images.base_image(found.image.base, folder, prefix)
    tag = build_images.build(found.image, base, folder, prefix, fresh=word)
    yield found, tag, word
    podman("image", "rm", tag)
    podman("image", "prune", "--force")


def told(tag: str) -> str:
    """All that podman says of an image: configuration, labels, history."""
    return "".join(
        podman(*asked, tag).stdout for asked in (("inspect",), ("history", "--no-trunc"))
    )


def test_two_builds_have_equal_layers(again: tuple[BuiltImage, str, str]) -> None:
    image, tag, _ = again
    first, second = image.inspect(), image.inspect(tag)
    assert len(first["RootFS"]["Layers"]) > 3
    assert first["RootFS"]["Layers"] == second["RootFS"]["Layers"]
    assert first["Config"] == second["Config"]


def test_what_the_build_was_told_is_nowhere(
    again: tuple[BuiltImage, str, str], tmp_path: Path
) -> None:
    _, tag, word = again
    assert word not in told(tag)
    archive = tmp_path / "again.tar"
    podman(
        "save", "--quiet", "--format=oci-archive", "--uncompressed", "--output", str(archive), tag
    )
    assert subprocess.run(["grep", "--quiet", word, str(archive)]).returncode == 1
    archive.unlink()


def test_no_setting_of_pip_is_in_an_image(image: BuiltImage) -> None:
    """Indexes that this host was told of, where packages came from, and files of the build."""
    hosts = {
        word.split("://", 1)[1].split("/")[0].rsplit("@", 1)[-1]
        for word in build_images.pip_settings().split()
        if "://" in word
    }
    for text in (told(image.tag), image.bill.read_text()):
        assert [part for part in (*hosts, "/simple", "PIP_", "secret") if part in text] == []
    script = "ls -A /run/secrets /etc/pip.conf /build /root/.config 2>/dev/null; true"
    assert image.run("sh", "-c", script).stdout == ""
