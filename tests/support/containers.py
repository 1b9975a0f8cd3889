"""Images that `make images` built, and containers of them without a network."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_images import IMAGES, Image, images_folder, podman_command, stamp_of, tag_of

PODS = ("--read-only", "--tmpfs", "/tmp:mode=1777", "--cap-drop", "all", "--network", "none")
"""What a pod of ours is like: nothing to write but /tmp and its volumes, and no rights."""

LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
"""Podman's own may be above this machine's, which it may not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image in podman's storage, and its files beside it."""

    image: Image
    tag: str
    archive: Path
    bill: Path

    def inspect(self, tag: str | None = None) -> dict[str, Any]:
        """What podman says of the image, or of another in the same storage."""
        found: dict[str, Any] = json.loads(podman("image", "inspect", tag or self.tag).stdout)[0]
        return found

    def run(
        self,
        *command: str,
        volumes: Mapping[Path, str] | None = None,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container as a pod would; the image's own command without any."""
        mounts = [f"--volume={host}:{inside}" for host, inside in (volumes or {}).items()]
        variables = [f"--env={name}={value}" for name, value in (environment or {}).items()]
        given = ["--rm", *PODS, *LIMITS, *mounts, *variables, *options, self.tag, *command]
        return podman("--runtime=runc", "run", *given, check=False)


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Podman on the storage of `make images`."""
    command = [*podman_command(images_folder()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check)


def built_image(name: str) -> BuiltImage | None:
    """The image, or None if it is not there or older than its inputs."""
    (image,) = (image for image in IMAGES if image.name == name)
    folder = images_folder()
    archive, stamp = folder / f"{name}.tar", folder / f"{name}.stamp"
    if not archive.exists() or not stamp.exists() or stamp.read_text() != stamp_of(image):
        return None
    return BuiltImage(
        image=image, tag=tag_of(image), archive=archive, bill=folder / f"{name}.sbom.cdx.json"
    )


def open_to_all(folder: Path) -> None:
    """Let any user read a temporary folder and what is in it: a container's user is not ours."""
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    temporary = Path(tempfile.gettempdir())
    for path in (folder, *folder.parents):
        if path.is_relative_to(temporary) and path != temporary:
            path.chmod(path.stat().st_mode | 0o555)
