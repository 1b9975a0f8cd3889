"""What the Dockerfiles' script installs: extras, pins and their replacements."""

import tomllib
from pathlib import Path

import pytest

import image_requirements

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["image_requirements.py", *arguments])
    image_requirements.main()


def test_a_replaced_pin_is_there_once(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "worker", "torch==2.6.0+debian", "Compressed_Tensors==0.15.0.1")
    pins = (written / "pins.txt").read_text().splitlines()
    names = [image_requirements.name_of(line) for line in pins]
    assert len(names) == len(set(names))
    assert {"torch==2.6.0+debian", "Compressed_Tensors==0.15.0.1"} <= set(pins)
    assert any(line.startswith("torch-npu==") for line in pins)
    assert "transformers" in names


def test_ourselves_are_not_among_the_requirements(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer of dependencies must outlive a change of our sources."""
    run(monkeypatch, "npu")
    wanted = (written / "requirements.txt").read_text().splitlines()
    names = [image_requirements.name_of(line) for line in wanted]
    assert "quantfleet" not in names
    assert {"torch", "torch-npu", "pydantic", "transformers"} <= set(names)


def test_everything_that_images_install_is_pinned(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in ("worker", "operator", "npu"):
        run(monkeypatch, extra)
        pins = {
            image_requirements.name_of(line)
            for line in (written / "pins.txt").read_text().splitlines()
        }
        for file in ("requirements.txt", "tools.txt"):
            for line in (written / file).read_text().splitlines():
                assert image_requirements.name_of(line) in pins, line


def test_build_requirements_are_the_packages_own(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, "operator")
    tools = (written / "tools.txt").read_text().splitlines()
    required = tomllib.loads((written / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [*required, image_requirements.TOOLS] == tools
