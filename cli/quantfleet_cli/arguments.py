"""From what was typed to a checked job and the folders of its claims, before any engine starts."""

from collections.abc import Sequence
from pathlib import Path

from quantfleet_api.errors import InvalidInput
from quantfleet_api.loading import load_job, resolve_volume
from quantfleet_api.spec import QuantizationJob

MOST_WORKERS = 10_000


def read_arguments(
    path: Path, volumes: Sequence[str], *, workers: int | None = None
) -> tuple[QuantizationJob, dict[str, Path]]:
    """The job in `path`, and the absolute folder of every claim given as CLAIM=DIR."""
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise InvalidInput("--workers", workers, f"must be from 1 to {MOST_WORKERS}")
    folders = parse_volumes(volumes)
    job = load_job(path)
    spec = job.spec
    resolve_volume(spec.model.source.pvc, folders, field="spec.model.source.pvc")
    if spec.calibration is not None:
        resolve_volume(spec.calibration.source.pvc, folders, field="spec.calibration.source.pvc")
    if spec.evaluation is not None:
        resolve_volume(spec.evaluation.source.pvc, folders, field="spec.evaluation.source.pvc")
    resolve_volume(spec.output.pvc, folders, field="spec.output.pvc")
    return job, folders


def parse_volumes(volumes: Sequence[str]) -> dict[str, Path]:
    """Claims and their absolute folders; a folder may be missing, but must not be a file."""
    folders: dict[str, Path] = {}
    for text in volumes:
        claim, separator, folder = text.partition("=")
        if not (claim and separator and folder):
            raise InvalidInput("--volume", text, "must be CLAIM=DIR")
        if claim in folders:
            raise InvalidInput("--volume", text, f"must name the claim {claim} only once")
        path = Path(folder).expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise InvalidInput("--volume", text, "must name a folder, not a file")
        folders[claim] = path
    return folders


def existing_folder(path: Path) -> Path:
    """`path`, if it is a folder."""
    if not path.is_dir():
        raise InvalidInput("DIR", str(path), "must be an existing folder")
    return path
