"""Base images from Debian packages, made without a registry; used by build_images.py.

The base of the worker holds Debian's torch, which is for CPUs: a tenth of the size of the one in
the ordinary package index. Nothing of the host but its package mirror's packages gets in, and what
a set-up leaves behind (logs, caches, lists, the mirror's name) is taken out, so that equal packages
give equal files.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SUITE = "trixie"
ANY_BASE = ("python3", "python3-venv", "ca-certificates")
LEFT_BEHIND = (
    "etc/apt/sources.list",
    "etc/hostname",
    "etc/machine-id",
    "etc/resolv.conf",
    "dev/*",
    "run/*",
    "tmp/*",
    "usr/share/doc/*/*",
    "usr/share/info/*",
    "usr/share/lintian",
    "usr/share/locale/*",
    "usr/share/man/*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/log/*",
)
KEPT = "copyright"
"""Files of this name stay: licences ask for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image: its name, and the packages it has besides Debian's smallest set."""

    name: str
    packages: Sequence[str]


def make_tree(base: Base, tree: Path) -> None:
    """Install the packages into the folder `tree`, which must not exist; needs root.

    DEBIAN_MIRROR names another mirror than debootstrap's own.
    """
    mirror = [url] if (url := os.environ.get("DEBIAN_MIRROR")) else []
    include = f"--include={','.join([*ANY_BASE, *base.packages])}"
    # mounts of its own: what debootstrap mounts goes with it, also if it is killed
    command = ["unshare", "--mount", "--propagation", "private", "debootstrap"]
    command += ["--variant=minbase", include, SUITE, str(tree), *mirror]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"error: debootstrap failed:\n{done.stdout[-2000:]}")
    for pattern in LEFT_BEHIND:
        for path in tree.glob(pattern):
            if path.name != KEPT:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def import_tree(tree: Path, tag: str, podman: Sequence[str]) -> None:
    """Make an image of one layer of the folder.

    No file is newer than the newest Python source: those have the time of their package, by which
    their compiled form is recognized, and all that is newer was made just now.
    """
    newest = max(int(path.lstat().st_mtime) for path in tree.glob("usr/lib/python3*/**/*.py"))
    pack = ["tar", "--create", "--sort=name", "--numeric-owner", "--format=posix"]
    pack += ["--pax-option=delete=atime,delete=ctime", f"--mtime=@{newest}", "--clamp-mtime"]
    pack += ["--directory", str(tree), "."]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
        command = [*podman, "import", "--quiet", "-", tag]
        subprocess.run(command, check=True, stdin=packing.stdout, stdout=subprocess.DEVNULL)
    if packing.returncode:
        raise SystemExit(f"error: tar ended with {packing.returncode}")
