"""Images come into the nodes from archives: there is no registry."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from two_nodes.configuration import PAUSE_IMAGE
from two_nodes.nodes import run_on
from two_nodes.site import ClusterError, Node, Site, cache_folder

IMAGES = ("quantfleet-operator", "quantfleet-worker")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def built_archives() -> list[Path]:
    """The archives of our images; ClusterError says how to get them."""
    found = archives_there()
    if missing := set(IMAGES) - {archive.stem for archive in found}:
        raise ClusterError(f"images missing: {', '.join(sorted(missing))}; run `make images`")
    return found


def archives_there() -> list[Path]:
    """Those of them that were built."""
    archives = [cache_folder() / "images" / f"{name}.tar" for name in IMAGES]
    return [archive for archive in archives if archive.exists()]


def load(site: Site, archives: Sequence[Path]) -> None:
    """Import archives into both nodes, but those that a node has already."""
    for archive in archives:
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(_load_into_node, site, archive), site.nodes))


def _load_into_node(site: Site, archive: Path, node: Node) -> None:
    load_into(site, node, archive)


def load_into(site: Site, node: Node, archive: Path) -> None:
    """Import an archive into a node, unless this very file was imported before."""
    version = version_of(archive)
    loaded = node.folder / "loaded" / archive.name
    if loaded.exists() and loaded.read_text() == version:
        return
    ctr = ("ctr", "--address", str(node.socket), "--namespace", "k8s.io")
    run_on(site, node, [*ctr, "images", "import", str(archive)])
    loaded.parent.mkdir(exist_ok=True)
    loaded.unlink(missing_ok=True)  # it may be the store's too
    loaded.write_text(version)


def version_of(archive: Path) -> str:
    """Changes whenever the archive is built anew."""
    about = archive.stat()
    return f"{about.st_size} {about.st_mtime_ns}"


def write_pause(site: Site, program: Path) -> Path:
    """The image of pods' sandboxes: one static program."""
    archive = site.folder / "pause.tar"
    write_archive(archive, PAUSE_IMAGE, {"pause": program.read_bytes()}, ["/pause"])
    about = program.stat()  # its time too: an archive of the same program is the same one
    os.utime(archive, ns=(about.st_atime_ns, about.st_mtime_ns))
    return archive


def write_archive(
    archive: Path, name: str, files: Mapping[str, bytes], entrypoint: list[str]
) -> None:
    """An image of a few programs, in the layout of `docker save`."""
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True)
    layer = _tar(files, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    configuration = {
        "architecture": MACHINES[machine.stdout.strip()],
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "User": "65534", "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    whole = {
        "layer.tar": layer,
        "config.json": json.dumps(configuration).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    archive.write_bytes(_tar(whole))


def _tar(files: Mapping[str, bytes], *, mode: int = 0o644) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()
