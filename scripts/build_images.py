"""Build the images of worker and operator for tests; run by `make images`, safe to run again.

Writes, under `.cache/images` (or `$QUANTFLEET_CACHE/images`), for each image:

    NAME.tar             an OCI archive, tagged docker.io/library/NAME:VERSION as a kubelet wants it
    NAME.sbom.cdx.json   what is inside, as in the image's /usr/share/quantfleet
    NAME.stamp           a hash of all inputs; while it is the same, nothing is built

and storage/, podman's own images, where base and dependencies are found again. The host's settings
of pip and its certificates enter as build secrets. Needs root, podman and debootstrap.
"""

import argparse
import ast
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import debian_tree
from debian_tree import Base

ROOT = Path(__file__).resolve().parent.parent
SOURCE_DATE_EPOCH = 1700000000
"""The time of every file and image that is built: seconds since 1970."""
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "timeout", "retries")
SOURCES = ("operator", "worker", "cli")
INPUTS = (".dockerignore", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "NOTICE")
SCRIPTS = ("build_images.py", "debian_tree.py", "image_requirements.py", "image_sbom.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: what it is built from."""

    name: str
    dockerfile: str
    base: Base
    replaced_constraints: Sequence[str] = ()


IMAGES = (
    Image(
        name="quantfleet-worker",
        dockerfile="worker/Dockerfile",
        # the reference BLAS, which torch would take alone, is eight times slower
        base=Base(name="torch", packages=("python3-torch", "libopenblas0-pthread")),
        # what the base has, and the newest compressed-tensors that takes it
        replaced_constraints=("torch==2.6.0+debian", "compressed-tensors==0.15.0.1"),
    ),
    Image(
        name="quantfleet-operator",
        dockerfile="operator/Dockerfile",
        base=Base(name="python", packages=()),
    ),
)


def images_folder() -> Path:
    """Where everything is written."""
    return Path(os.environ.get("QUANTFLEET_CACHE") or ROOT / ".cache").resolve() / "images"


def tag_of(image: Image) -> str:
    """The name under which a kubelet finds the image that the chart names by default."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return f"docker.io/library/{image.name}:{version}"


def podman_command(folder: Path) -> list[str]:
    """Podman on a storage of its own below `folder`, which one removal of the folder ends."""
    return [
        *("podman", "--root", str(folder / "storage"), "--runroot", str(folder / "run")),
        *("--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"),
        *("--events-backend", "none"),
    ]


def stamp_of(image: Image) -> str:
    """A hash of every file that can change the image, and of what its base is made of."""
    paths = [ROOT / name for name in (image.dockerfile, *INPUTS)]
    paths += [ROOT / "scripts" / name for name in SCRIPTS]
    for folder in SOURCES:
        paths += [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    digest = hashlib.sha256(repr(image).encode())
    for path in sorted(paths):
        digest.update(f"{path.relative_to(ROOT)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def pip_settings() -> str:
    """A pip.conf of the host's settings, from files and environment, with other certificates."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():  # `global.index-url='...'`, then `:env:.index-url='...'`
        key, value = line.split("=", 1)
        found[key.rsplit(".", 1)[1]] = ast.literal_eval(value)
    kept = [f"{name} = {found[name]}" for name in PIP_SETTINGS if name in found]
    kept += ["cert = /run/secrets/certificates"] if certificates(found) else []
    return "\n".join(["[global]", *kept, ""]).replace("\n\n", "\n")


def certificates(settings: dict[str, str] | None = None) -> Path | None:
    """The bundle of certificates that this host trusts, if it is told of one."""
    named = (settings or {}).get("cert") or os.environ.get("SSL_CERT_FILE")
    default = Path("/etc/ssl/certs/ca-certificates.crt")
    path = Path(named) if named else default
    return path if path.is_file() else None


@contextmanager
def build_secrets(folder: Path, secret: str) -> Iterator[list[str]]:
    """Options that hand pip's settings and the certificates to a build, and to nothing else.

    `secret` is a word to look for afterwards: a test shows that it is in no layer.
    """
    file = folder / "pip.conf"
    file.touch(mode=0o600)
    try:
        file.write_text(f"{pip_settings()}# {secret}\n")
        bundle = certificates()
        more = [f"--secret=id=certificates,src={bundle}"] if bundle else []
        yield [f"--secret=id=pip,src={file}", *more]
    finally:
        file.unlink()


def has_image(podman: Sequence[str], tag: str) -> bool:
    """Whether podman's storage has an image of this name."""
    return subprocess.run([*podman, "image", "exists", tag]).returncode == 0


def base_image(base: Base, folder: Path, podman: Sequence[str]) -> str:
    """The tag of the base image, which is made if it is not there."""
    source = (ROOT / "scripts" / "debian_tree.py").read_bytes() + repr(base).encode()
    tag = f"localhost/base-{base.name}:{hashlib.sha256(source).hexdigest()[:12]}"
    if not has_image(podman, tag):
        tree = folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        debian_tree.make_tree(base, tree)
        debian_tree.import_tree(tree, tag, podman)
        shutil.rmtree(tree)
    return tag


def build(image: Image, base: str, folder: Path, podman: Sequence[str], *, fresh: str = "") -> str:
    """Build the image on a base image and return its tag.

    With `fresh`, a secret word, no layer of a build before is used, and the tag is another.

    The layer of dependencies gets a tag of its own, by which it outlives a change of our sources.
    """
    tag = f"{tag_of(image)}-again" if fresh else tag_of(image)
    replaced = " ".join(image.replaced_constraints)
    command = [*podman, "build", "--quiet", "--isolation=chroot", "--network=host", "--layers"]
    command += ["--file", str(ROOT / image.dockerfile), f"--timestamp={SOURCE_DATE_EPOCH}"]
    command += [f"--build-arg=BASE_IMAGE={base}", f"--build-arg=REPLACED_CONSTRAINTS={replaced}"]
    command += [f"--build-arg=SOURCE_DATE_EPOCH={SOURCE_DATE_EPOCH}"]
    command += ["--no-cache"] if fresh else []
    with build_secrets(folder, fresh) as secrets:
        stages = [["--tag", tag]]
        if not fresh:
            stages.insert(0, ["--target=dependencies", "--tag", f"localhost/{image.name}-layers"])
        for stage in stages:
            run = [*command, *secrets, *stage, str(ROOT)]
            subprocess.run(run, check=True, stdout=subprocess.DEVNULL, env=_environment(folder))
    return tag


def _environment(folder: Path) -> dict[str, str]:
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    return os.environ | {"TMPDIR": str(temporary)}


def write_archive(image: Image, tag: str, folder: Path, podman: Sequence[str]) -> None:
    """Write the archive and the bill of materials, each under another name first."""
    new = folder / f"{image.name}.tar.new"
    new.unlink(missing_ok=True)
    command = [*podman, "save", "--quiet", "--format=oci-archive", "--uncompressed"]
    subprocess.run([*command, "--output", str(new), tag], check=True, env=_environment(folder))
    mounting = [*podman, "image", "mount", tag]
    mounted = subprocess.run(mounting, check=True, capture_output=True, text=True).stdout.strip()
    bill = folder / f"{image.name}.sbom.cdx.json"
    try:
        shutil.copyfile(Path(mounted) / "usr/share/quantfleet/sbom.cdx.json", bill)
    finally:
        subprocess.run([*podman, "image", "unmount", tag], check=True, stdout=subprocess.DEVNULL)
    new.rename(folder / f"{image.name}.tar")


def make_image(image: Image, folder: Path) -> None:
    """Bring the archive up to date with its inputs."""
    stamp, file = stamp_of(image), folder / f"{image.name}.stamp"
    archive = folder / f"{image.name}.tar"
    if archive.exists() and file.exists() and file.read_text() == stamp:
        return
    file.unlink(missing_ok=True)
    begin = time.monotonic()
    podman = podman_command(folder)
    tag = build(image, base_image(image.base, folder, podman), folder, podman)
    write_archive(image, tag, folder, podman)
    # what nothing refers to any more: the image before, and layers of its sources
    subprocess.run([*podman, "image", "prune", "--force"], check=True, stdout=subprocess.DEVNULL)
    file.write_text(stamp)
    figures = {"seconds": round(time.monotonic() - begin, 1), "bytes": archive.stat().st_size}
    print(json.dumps({"image": tag, **figures}), flush=True)


def main() -> None:
    """Build the images that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", nargs="*", choices=[[], *(image.name for image in IMAGES)])
    names = parser.parse_args().name
    folder = images_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for image in IMAGES:
            if not names or image.name in names:
                make_image(image, folder)


if __name__ == "__main__":
    main()
