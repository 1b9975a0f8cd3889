"""Images come into the nodes from archives: there is no registry."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from two_nodes.configuration import PAUSE_IMAGE
from two_nodes.nodes import enter
from two_nodes.site import ClusterError, Node, Site, cache_folder

LOCAL = "localhost/"
"""What a builder puts before a name without a registry; a kubelet puts another before it."""
DEFAULT = "docker.io/library/"


def archives() -> list[Path]:
    """The archives that `make images` built."""
    return sorted((cache_folder() / "images").glob("*.tar"))


def pause_archive(site: Site, program: Path) -> Path:
    """The image of pods' sandboxes: one static program, in the layout of `docker save`."""
    layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    archive = site.folder / "pause.tar"
    archive.write_bytes(
        _tar(
            {
                "layer.tar": layer,
                "config.json": json.dumps(configuration).encode(),
                "manifest.json": json.dumps(manifest).encode(),
            }
        )
    )
    return archive


def load(site: Site, node: Node, archive: Path) -> None:
    """Import an archive into a node, under the names that pods ask for."""
    before = set(_names(site, node))
    _ctr(site, node, "images", "import", str(archive))
    for name in set(_names(site, node)) - before:
        if name.startswith(LOCAL):
            asked = DEFAULT + name.removeprefix(LOCAL)
            _ctr(site, node, "images", "tag", "--force", name, asked)


def _names(site: Site, node: Node) -> list[str]:
    return _ctr(site, node, "images", "list", "--quiet").split()


def _ctr(site: Site, node: Node, *arguments: str) -> str:
    command: Sequence[str] = [
        *enter(site, node),
        *("ctr", "--address", str(node.socket), "--namespace", "k8s.io"),
        *arguments,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ClusterError(f"{node.name}: ctr {' '.join(arguments)}: {done.stdout.strip()}")
    return done.stdout


def _tar(files: dict[str, bytes], *, mode: int = 0o644) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()
