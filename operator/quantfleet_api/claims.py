"""The claims that a job names: where its model, texts and output lie.

Asked by the operator (what to mount, what to look at when workers wait) and by the worker (where
its claims are mounted), so that all mean the same.
"""

from collections.abc import Mapping
from typing import Any

_READ = ("model", "calibration", "evaluation")


def claims_of(spec: Mapping[str, Any]) -> dict[str, bool]:
    """The claims in a spec as it stands in a manifest, in order, and whether they are only read.

    A spec that was never checked may lack any part; what is not there names no claim.
    """
    parts = [_part(spec, name) for name in _READ]
    read = [_claim(_part(part, "source")) for part in parts]
    output = _claim(_part(spec, "output"))
    return {name: name != output for name in [*read, output] if name}


def _claim(place: Mapping[str, Any]) -> str:
    return _part(place, "pvc").get("claimName") or ""


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return of.get(name) or {}
