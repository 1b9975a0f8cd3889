"""The shape of the repository: what no linter checks."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE_FOLDERS = ("operator", "worker", "cli")
SOURCE_FOLDERS = (*PACKAGE_FOLDERS, "scripts", "benchmarks", "testbed")
MOST_FILE_LINES = 300
MOST_FUNCTION_LINES = 40
LONGER_FUNCTIONS: frozenset[str] = frozenset()
"""Exceptions, as "path:function", each with its reason beside it."""
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
DOORS = {
    "torch.distributed": "worker/quantfleet_worker/exchange.py",
    "torch.cuda": "worker/quantfleet_worker/device.py",
    "torch.npu": "worker/quantfleet_worker/device.py",
    "torch_npu": "worker/quantfleet_worker/device.py",
    "torch.backends": "worker/quantfleet_worker/device.py",
}
"""Modules that only one file may use."""
CONTRACT_IMPORTS = {"pydantic", "pydantic_core", "quantfleet_api"}
PRIVATE = re.compile(
    "|".join(
        [
            r"(?<![\w.}])/(?:work|root|home|Users|tmp|farm)/\w",
            r"https?://[^\s\"')]*/simple\b",
            r"(?:pypi|pythonhosted)\.org",
        ]
    )
)
"""Paths of one machine, and hosts that packages came from."""


def tracked_files() -> list[str]:
    """Every file that git tracks, or would once it is added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.splitlines() if (REPOSITORY / name).is_file()]
    assert len(files) > 20
    return files


def sources() -> list[str]:
    """Every Python file of the product, tests apart."""
    return [
        name
        for name in tracked_files()
        if name.endswith(".py") and name.split("/")[0] in SOURCE_FOLDERS
    ]


def parsed(name: str) -> ast.Module:
    return ast.parse((REPOSITORY / name).read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def used(tree: ast.Module) -> set[str]:
    """Imports, and attributes by their dotted name (`torch.cuda.is_available`)."""
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {*imported(tree), *attributes}


def test_operator_folder_is_no_package() -> None:
    """With operator/__init__.py every Python started in the root would die: it shadows stdlib."""
    assert not (REPOSITORY / "operator" / "__init__.py").exists()


def test_test_folders_are_no_packages() -> None:
    assert [name for name in tracked_files() if re.match(r"tests/(.*/)?__init__\.py$", name)] == []


def test_no_package_shadows_the_standard_library() -> None:
    packages = {path.stem for folder in PACKAGE_FOLDERS for path in (REPOSITORY / folder).iterdir()}
    assert {"quantfleet_api", "quantfleet_worker", "quantfleet_cli"} <= packages
    assert packages & sys.stdlib_module_names == set()


def test_only_packages_lie_directly_in_the_package_folders() -> None:
    loose = [
        name for name in tracked_files() if re.match(r"(operator|worker|cli)/[^/]+\.py$", name)
    ]
    assert loose == []


def test_source_files_are_short() -> None:
    lengths = {name: len((REPOSITORY / name).read_text().splitlines()) for name in sources()}
    assert {name: n for name, n in lengths.items() if n >= MOST_FILE_LINES} == {}


def test_functions_are_short() -> None:
    long = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1
        for name in sources()
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 >= MOST_FUNCTION_LINES
    }
    assert {where: n for where, n in long.items() if where not in LONGER_FUNCTIONS} == {}
    assert long.keys() >= LONGER_FUNCTIONS, "an exception is no longer needed"


def test_names_say_what_a_module_is() -> None:
    vague = [name for name in sources() if VAGUE_NAMES & set(re.split(r"[/_.]", name))]
    assert vague == []


def test_every_module_says_what_it_is() -> None:
    assert [name for name in sources() if not ast.get_docstring(parsed(name))] == []


@pytest.mark.parametrize(("module", "door"), DOORS.items(), ids=DOORS)
def test_one_file_alone_uses(module: str, door: str) -> None:
    users = {
        name
        for name in sources()
        if name.split("/")[0] in PACKAGE_FOLDERS
        and any(use == module or use.startswith(module + ".") for use in used(parsed(name)))
    }
    assert users <= {door}


def test_contracts_import_pydantic_and_the_standard_library_only() -> None:
    others = {
        (name.rsplit("/", 1)[1], module.split(".")[0])
        for name in sources()
        if name.startswith("operator/quantfleet_api/")
        for module in imported(parsed(name))
        if module.split(".")[0] not in sys.stdlib_module_names | CONTRACT_IMPORTS
    }
    assert others <= {("loading.py", "yaml"), ("crd.py", "yaml")}


def test_no_path_of_a_machine_and_no_package_host_is_tracked() -> None:
    found = []
    for name in tracked_files():
        try:
            lines = (REPOSITORY / name).read_text().splitlines()
        except UnicodeDecodeError:  # a binary file
            continue
        found += [f"{name}:{i}: {line}" for i, line in enumerate(lines, 1) if PRIVATE.search(line)]
    assert [line for line in found if not line.startswith("tests/layout/")] == []


def test_text_is_ascii() -> None:
    """Names and prose alike; tests may hold any text as data."""
    foreign = [
        name
        for name in tracked_files()
        if name.endswith((".py", ".md", ".yaml", ".toml", ".sh")) and not name.startswith("tests/")
        if not (REPOSITORY / name).read_bytes().isascii()
    ]
    assert foreign == []
