"""The bill of materials of an image, as CycloneDX JSON; run by the Dockerfiles, in the image.

Lists the Python distributions that the environment sees, those of the system's packages included,
and the Debian packages where there are any. Says nothing of where packages came from. The same
content gives the same bytes: its serial number is a hash, and its time is SOURCE_DATE_EPOCH.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

OURSELVES = "quantfleet"


def python_components(folders: Sequence[str]) -> Iterator[Component]:
    """One component a distribution; the first folder that has one hides later ones, as Python."""
    seen = set()
    for found in importlib.metadata.distributions(path=list(folders)):
        name = found.name.lower().replace("_", "-").replace(".", "-")
        if name not in seen:
            seen.add(name)
            yield component(PackageURL("pypi", name=name, version=found.version))


def debian_components() -> Iterator[Component]:
    """One component a Debian package that is installed; none where dpkg is not known."""
    if shutil.which("dpkg-query") is None:
        return
    form = "${db:Status-Status} ${Package} ${Version} ${Architecture}\n"
    command = ["dpkg-query", "--show", "--showformat", form]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        status, name, version, architecture = line.split(" ")
        if status == "installed":
            url = PackageURL("deb", "debian", name, version, {"arch": architecture})
            yield component(url)


def component(url: PackageURL, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    """The component that a package URL names; its reference is the URL, not a random number."""
    return Component(
        name=url.name, version=url.version, type=kind, purl=url, bom_ref=url.to_string()
    )


def bill(components: Sequence[Component], epoch: int) -> str:
    """The document; the component that is this project is what it is about."""
    own = next(item for item in components if item.name == OURSELVES)
    others = [item for item in components if item is not own]
    names = sorted(item.bom_ref.value or "" for item in components)
    document = Bom(
        components=others, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(names))
    )
    assert own.purl is not None
    subject = component(own.purl, ComponentType.APPLICATION)
    document.metadata.component = subject
    document.register_dependency(subject, others)
    document.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    return JsonV1Dot6(document).output_as_string(indent=2) + "\n"


def main() -> None:
    """Write the bill of the image this runs in."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--project", type=Path, required=True, help="what comes on top of it")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    command = [
        given.environment / "bin" / "python",
        "-c",
        "import json,sys;print(json.dumps(sys.path))",
    ]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    folders = [folder for folder in json.loads(printed) if folder]
    own = [str(folder) for folder in given.project.glob("lib/python*/site-packages")]
    found = [*python_components([*own, *folders]), *debian_components()]
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    given.output.write_text(bill(found, epoch))


if __name__ == "__main__":
    main()
