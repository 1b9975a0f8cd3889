"""The digest manifest of a published folder."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.published import MANIFEST_NAME, check, manifest, read_manifest

CONTENT = {
    "config.json": b"{}",
    "ascend/weights.safetensors": b"\x00" * 3_000_000,
    "compressed-tensors/model.safetensors": b"abc",
    "empty.txt": b"",
}


def publish(folder: Path) -> Path:
    digests = {}
    for name, content in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        digests[name] = (hashlib.sha256(content).hexdigest(), len(content))
    (folder / MANIFEST_NAME).write_bytes(manifest(digests, "plan-digest"))
    return folder


def test_a_whole_folder_has_no_problems(tmp_path: Path) -> None:
    folder = publish(tmp_path)

    assert check(folder) == []
    assert read_manifest(folder).plan == "plan-digest"
    assert read_manifest(folder).files["config.json"].size == 2


def test_bytes_do_not_depend_on_the_order_of_files() -> None:
    files = {"b": ("0" * 64, 1), "a": ("1" * 64, 2)}

    assert manifest(files, "x") == manifest(dict(reversed(files.items())), "x")


def truncate(folder: Path) -> None:
    (folder / "ascend/weights.safetensors").write_bytes(b"\x00" * 2_999_999)


def flip(folder: Path) -> None:
    (folder / "ascend/weights.safetensors").write_bytes(b"\x00" * 2_999_999 + b"\x01")


def link(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "ascend/weights.safetensors")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (truncate, "ascend/weights.safetensors: has 2999999 bytes instead of 3000000"),
        (flip, "ascend/weights.safetensors: has SHA-256"),
        (link, "config.json: is no regular file"),
        (lambda folder: (folder / "empty.txt").unlink(), "empty.txt: is missing"),
        (lambda folder: (folder / "ascend/x").touch(), "ascend/x: is in no manifest"),
        (lambda folder: (folder / "dangling").symlink_to("gone"), "dangling: is in no manifest"),
    ],
)
def test_damage_is_named(damage: Callable[[Path], None], problem: str, tmp_path: Path) -> None:
    folder = publish(tmp_path)

    damage(folder)

    problems = check(folder)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_problems_are_sorted(tmp_path: Path) -> None:
    folder = publish(tmp_path)
    (folder / "zzz").touch()
    (folder / "aaa").touch()
    (folder / "config.json").unlink()

    assert check(folder) == [
        "aaa: is in no manifest",
        "config.json: is missing",
        "zzz: is in no manifest",
    ]


def test_a_folder_without_a_manifest_is_not_a_published_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be a published folder"):
        check(tmp_path)
    with pytest.raises(InvalidInput, match="must be a published folder"):
        check(tmp_path / "absent")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"{", "must be a manifest"),
        (b"\xff", "must be a manifest"),
        (b'{"version": 1, "plan": "x"}', "must be a manifest"),
        (json.dumps({"version": 9, "plan": "x", "files": {}}).encode(), "must be 1"),
        (manifest({"../outside": ("0" * 64, 1)}, "x"), "its own folder only"),
        (manifest({"/outside": ("0" * 64, 1)}, "x"), "its own folder only"),
    ],
)
def test_an_unreadable_manifest_is_one_line(content: bytes, rule: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(content)

    with pytest.raises(InvalidInput, match=rule) as caught:
        read_manifest(tmp_path)

    assert "\n" not in str(caught.value)
