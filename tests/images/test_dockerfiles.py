"""The Dockerfiles, read as text: what nobody sees in an image that was built, and what is alike.

Two of them are built nowhere in the tests (no GPU, no CANN image), so their common stages must be
those of the image that is.
"""

import json
import re
import subprocess
import tomllib
from io import BytesIO
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

REPOSITORY = Path(__file__).resolve().parents[2]
WORKERS = ("worker/Dockerfile", "worker/Dockerfile.cuda", "worker/Dockerfile.npu")
DOCKERFILES = (*WORKERS, "operator/Dockerfile")
USERS = dict.fromkeys(WORKERS, "1000:1000") | {"operator/Dockerfile": "65532:65532"}
COMMANDS = {name: ["python", "-m", "quantfleet_worker"] for name in WORKERS} | {
    "operator/Dockerfile": ["python", "-m", "quantfleet_operator"]
}
SECRETS = "--mount=type=secret,id=pip --mount=type=secret,id=certificates"
each = pytest.mark.parametrize("name", DOCKERFILES)


def parsed(name: str) -> list[tuple[str, str]]:
    """Instructions and their values, in order, lines joined, comments left out."""
    parser = DockerfileParser(fileobj=BytesIO((REPOSITORY / name).read_bytes()))
    found = [(item["instruction"], item["value"]) for item in parser.structure]
    return [(kind, value) for kind, value in found if kind != "COMMENT"]


def stages(name: str) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[tuple[str, str]]] = []
    for kind, value in parsed(name):
        if kind == "FROM":
            found.append([])
        if found:
            found[-1].append((kind, value))
    return found


def values(stage: list[tuple[str, str]], kind: str) -> list[str]:
    return [value for found, value in stage if found == kind]


@each
def test_the_user_is_a_number_that_is_not_root(name: str) -> None:
    """A kubelet can check runAsNonRoot of a number only."""
    final = stages(name)[-1]
    assert values(final, "USER") == [USERS[name]]
    assert [kind for kind, _ in final][-3:] == ["USER", "WORKDIR", "CMD"]


@each
def test_the_command_is_that_of_the_pods_and_no_shell(name: str) -> None:
    """A shell as process 1 would swallow SIGTERM."""
    final = stages(name)[-1]
    assert [json.loads(value) for value in values(final, "CMD")] == [COMMANDS[name]]
    assert values(final, "ENTRYPOINT") == []


@each
def test_every_stage_stands_on_the_base_image_or_a_stage(name: str) -> None:
    froms = [values(stage, "FROM")[0] for stage in stages(name)]
    assert froms == ["${BASE_IMAGE} AS dependencies", "dependencies AS project", "${BASE_IMAGE}"]
    (kind, default), *_ = parsed(name)
    assert kind == "ARG"
    assert re.fullmatch(r"BASE_IMAGE=[a-z0-9./-]+:[a-z0-9][a-z0-9.-]+", default)
    assert "latest" not in default


@each
def test_the_final_stage_runs_nothing_and_takes_files_of_stages_only(name: str) -> None:
    """So compilers, pip and its settings cannot be in it, whatever the build needed."""
    final = stages(name)[-1]
    assert values(final, "RUN") == []
    foreign = [value for value in values(final, "COPY") if not value.startswith("--from=")]
    wrapped = [value for value in foreign if "worker/with_cann.sh" in value]
    assert foreign == wrapped
    assert bool(wrapped) == (name == "worker/Dockerfile.npu")


@each
def test_whatever_reaches_an_index_has_the_secrets_and_nothing_else_does(name: str) -> None:
    runs = [value for stage in stages(name) for value in values(stage, "RUN")]
    asking = [run for run in runs if re.search(r"\bpip\b.* install\b", run)]
    assert asking
    for run in asking:
        assert run.startswith(SECRETS) or " --no-index " in run
    for run in runs:
        if not run.startswith(SECRETS):
            assert not re.search(r"\b(apt-get|curl|wget|git)\b", run)
            assert run.count(" pip ") + run.count("/pip ") == run.count("--no-index")


@each
def test_no_variable_or_address_could_carry_a_setting_of_an_index(name: str) -> None:
    named = [value for kind, value in parsed(name) if kind in ("ARG", "ENV", "LABEL")]
    for value in named:
        assert not re.search(r"INDEX|TOKEN|CERT|PASSW|SECRET|PIP_", value, re.IGNORECASE)
    assert "://" not in (REPOSITORY / name).read_text()
    assert [kind for kind, _ in parsed(name) if kind == "ADD"] == []


@each
def test_each_command_is_sound_shell(name: str) -> None:
    runs = [value for stage in stages(name) for value in values(stage, "RUN")]
    assert runs
    for run in runs:
        command = re.sub(r"--mount=\S+", "", run)
        subprocess.run(["sh", "-n", "-c", command], check=True)


@each
def test_what_is_copied_is_there_and_reaches_the_build(name: str) -> None:
    admitted = (REPOSITORY / ".dockerignore").read_text().splitlines()
    for stage in stages(name):
        for value in values(stage, "COPY"):
            *sources, _ = [word for word in value.split() if not word.startswith("--")]
            if "--from=" not in value:
                assert all((REPOSITORY / source).exists() for source in sources)
                assert all(f"!{source.split('/')[0]}" in admitted for source in sources)


@pytest.mark.parametrize("name", ["worker/Dockerfile.cuda", "worker/Dockerfile.npu"])
def test_what_is_not_built_here_is_built_like_what_is(name: str) -> None:
    """The stages that install are the CPU image's, but for the extra."""
    ours = [
        [(kind, value.replace("image_requirements.py npu", "image_requirements.py worker"))
         for kind, value in stage]
        for stage in stages(name)[:-1]
    ]  # fmt: skip
    assert ours == stages("worker/Dockerfile")[:-1]


def test_the_operator_is_built_like_the_worker() -> None:
    """Its stages are the worker's, but for extra, user and a torch of the system."""
    text = (REPOSITORY / "worker/Dockerfile").read_text()
    for old, new in (
        ('ARG REPLACED_CONSTRAINTS=""\n', ""),
        (
            "image_requirements.py worker ${REPLACED_CONSTRAINTS}",
            "image_requirements.py controlplane",
        ),
        ("--system-site-packages ", ""),
    ):
        assert old in text
        text = text.replace(old, new)
    structure = DockerfileParser(fileobj=BytesIO(text.encode())).structure
    kept = [(item["instruction"], item["value"]) for item in structure]
    kept = [item for item in kept if item[0] != "COMMENT"][1:]
    expected = [item for stage in stages("operator/Dockerfile")[:-1] for item in stage]
    assert kept[: len(expected)] == expected


@each
def test_extras_are_those_of_the_package(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    (extra,) = re.findall(r"image_requirements\.py (?!\./)([a-z]+)", text)
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert extra in extras["optional-dependencies"]
