"""The chart and the helm that reads it."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "quantfleet"
KUBERNETES = "1.34.4"
RELEASE, NAMESPACE = "qf", "qf-system"


def helm(*arguments: str, check: bool = True, kubeconfig: Path | None = None) -> str:
    """Run helm; its output, both streams."""
    cache = Path(os.environ.get("QUANTFLEET_CACHE") or REPOSITORY / ".cache")
    program = cache / "kubernetes" / "bin" / "helm"
    if not program.exists():
        pytest.skip(f"{program} is missing: run `make kubernetes`")
    # without KUBECONFIG it would reach for whatever cluster somebody happens to work with
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)}
    done = subprocess.run(
        [str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        env=environment,
    )
    if check and done.returncode:
        raise RuntimeError(f"helm {' '.join(arguments)}: {done.stdout}")
    return done.stdout


def rendered(*options: str) -> str:
    """What helm would install."""
    version = ("--kube-version", KUBERNETES)
    return helm("template", RELEASE, str(CHART), "-n", NAMESPACE, *version, *options)


def objects(*options: str) -> list[dict[str, Any]]:
    """The same, parsed."""
    return [found for found in yaml.safe_load_all(rendered(*options)) if found]


def of_kind(found: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The objects of one kind."""
    return [entry for entry in found if entry["kind"] == kind]
