"""Images unpacked once, for every cluster and both of its nodes.

Unpacking a gigabyte into each node takes longer than all the rest of bringing a cluster up. So one
containerd unpacks into a folder that stays, and nodes start with copies made of hard links: what an
image consists of is never written to again, only the databases are.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from two_nodes import images, programs
from two_nodes.configuration import containerd_toml
from two_nodes.nodes import enter, program, wait_containerd
from two_nodes.site import ClusterError, Node, Site

DATABASES = "io.containerd.*/*.db"


def fill(site: Site, node: Node, archives: Sequence[Path]) -> None:
    """Unpack the archives into the store, on a node whose own containerd does not run yet.

    A store that holds these very archives is left alone; one that a crash cut short does not say
    what it holds.
    """
    store, held = _store(site), _store(site) / "held"
    asked = {f"{archive.name} {images.version_of(archive)}" for archive in archives}
    if held.exists() and asked <= set(held.read_text().splitlines()):
        return
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir()
    configuration = node.folder / "store.toml"
    configuration.write_text(containerd_toml(node, root=store / "containerd"))
    name = program(node, "store")
    programs.start(site, name, [*enter(site, node), "containerd", "--config", str(configuration)])
    try:
        wait_containerd(site, node, name)
        for archive in archives:
            images.load_into(site, node, archive)
    finally:
        programs.stop(site, name)
    (node.folder / "loaded").rename(store / "loaded")
    held.write_text("\n".join(sorted(asked)))


def hand_out(site: Site, node: Node) -> None:
    """Give a node the images of the store, before its containerd starts."""
    for name in ("containerd", "loaded"):
        _copy("--archive", "--link", str(_store(site) / name), str(node.folder / name))
    root, store = node.folder / "containerd", _store(site) / "containerd"
    for database in store.glob(DATABASES):
        own = root / database.relative_to(store)
        own.unlink()
        _copy("--archive", str(database), str(own))


def _store(site: Site) -> Path:
    return site.folder.with_name(site.folder.name + "-images")


def _copy(*arguments: str) -> None:
    done = subprocess.run(["cp", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"cp {' '.join(arguments)}: {done.stderr.strip()}")
