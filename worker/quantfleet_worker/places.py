"""Local paths of what a manifest names.

Called by planning first of all, so that a claim that is not mapped is told before any file is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quantfleet_api.errors import InvalidInput
from quantfleet_api.loading import resolve_volume
from quantfleet_api.spec import Calibration, Evaluation, JobSpec, OutputClaim, PathInClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Local paths; calibration and evaluation only where the manifest has them."""

    model: Path
    output: Path
    calibration: Path | None
    evaluation: Path | None


def resolve_places(spec: JobSpec, volumes: Mapping[str, Path]) -> Places:
    """Local paths, given the folder of each claim; InvalidInput names the field in full."""

    def local(pvc: PathInClaim | OutputClaim, field: str) -> Path:
        try:
            return resolve_volume(pvc, volumes)
        except InvalidInput as error:
            raise InvalidInput(f"{field}.{error.field}", error.value, error.rule) from None

    def optional(part: Calibration | Evaluation | None, field: str) -> Path | None:
        return None if part is None else local(part.source.pvc, f"{field}.source")

    return Places(
        model=local(spec.model.source.pvc, "spec.model.source"),
        calibration=optional(spec.calibration, "spec.calibration"),
        output=local(spec.output.pvc, "spec.output"),
        evaluation=optional(spec.evaluation, "spec.evaluation"),
    )
