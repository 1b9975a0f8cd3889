"""What an image installs, from pyproject.toml and constraints.txt; run by the Dockerfiles.

Usage: image_requirements.py EXTRA [NAME==VERSION...]     in a folder with both files

Writes three files beside them: requirements.txt (what the extra needs, without this project, so
that its layer outlives changes of the sources), tools.txt (what only the build needs) and pins.txt
(constraints.txt with the given versions instead of its own). Needs the standard library only.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

TOOLS = "cyclonedx-python-lib"
"""What writes the bill of materials, besides what pyproject.toml names as build requirements."""


def name_of(requirement: str) -> str:
    """The normalized name of a requirement's package."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def pins(constraints: str, replaced: list[str]) -> list[str]:
    """The lines of constraints, those of replaced packages left out, and the replacements."""
    names = {name_of(line) for line in replaced}
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    return [*(line for line in lines if name_of(line) not in names), *replaced]


def needs(project: dict[str, Any], extra: str) -> list[str]:
    """What an extra asks for; where it names extras of this project, what those ask for."""
    found: list[str] = []
    for requirement in project["optional-dependencies"][extra]:
        if name_of(requirement) == project["name"]:
            inner = requirement.split("[")[1].split("]")[0].split(",")
            found += [line for name in inner for line in needs(project, name.strip())]
        else:
            found.append(requirement)
    return found


def main() -> None:
    """Write the three files into the working folder."""
    extra, *replaced = sys.argv[1:]
    definition = tomllib.loads(Path("pyproject.toml").read_text())
    project = definition["project"]
    tools = [*definition["build-system"]["requires"], TOOLS]
    texts = {
        "requirements.txt": [*project["dependencies"], *needs(project, extra)],
        "tools.txt": tools,
        "pins.txt": pins(Path("constraints.txt").read_text(), replaced),
    }
    for name, lines in texts.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
