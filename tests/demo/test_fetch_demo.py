"""Fetching: complete or absent, never twice, and never from a file that is not the known one."""

import hashlib
import sys
from pathlib import Path

import pytest

from fetch_demo import Wheel, fetched, make_once

CONTENT = b"a wheel"
WHEEL = Wheel(
    package="quantfleet-no-such-package",
    version="1",
    file="known-1-py3-none-any.whl",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def write_one(folder: Path) -> None:
    (folder / "content").write_text("new")


def test_a_wheel_that_is_there_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WHEEL.file).write_bytes(CONTENT)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert fetched(WHEEL, tmp_path) == tmp_path / WHEEL.file


def test_without_an_index_the_user_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit, match=f"Offline, put {WHEEL.file} .*{WHEEL.sha256}"):
        fetched(WHEEL, tmp_path)


def test_another_file_under_the_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\necho changed > {tmp_path}/{WHEEL.file}\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(SystemExit, match="is not the file this was written for"):
        fetched(WHEEL, tmp_path)


def test_a_folder_is_made_once_a_source(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make_once(folder, source="1", write=write_one)
    (folder / "content").write_text("kept")
    make_once(folder, source="1", write=write_one)
    assert (folder / "content").read_text() == "kept"
    make_once(folder, source="2", write=write_one)
    assert (folder / "content").read_text() == "new"


def test_an_interrupted_write_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def fail(unfinished: Path) -> None:
        write_one(unfinished)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_once(folder, source="1", write=fail)
    assert not folder.exists()
    make_once(folder, source="1", write=write_one)
    assert [path.name for path in folder.iterdir()] == ["content"]
