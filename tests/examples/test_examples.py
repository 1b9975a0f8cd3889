"""Every example is a valid manifest that fits the demo's volumes."""

from pathlib import Path

import pytest

from quantfleet_api.loading import load_job
from quantfleet_api.spec import needs_data, resolve

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


def test_every_scheme_has_an_example() -> None:
    schemes = {load_job(path).spec.recipe.scheme for path in EXAMPLES}
    assert schemes == {"W8A8", "W8A8Dynamic", "W8A16", "W4A16"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_valid_and_named_after_its_file(path: Path) -> None:
    job = resolve(load_job(path))
    assert job.metadata.name == job.spec.output.pvc.path == path.stem
    assert (job.spec.calibration is not None) == needs_data(job.spec.recipe)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_measures_what_it_publishes(path: Path) -> None:
    evaluation = load_job(path).spec.evaluation
    assert evaluation is not None
    assert evaluation.max_perplexity_ratio is not None
