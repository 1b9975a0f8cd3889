"""Law L1: the published files have the same SHA-256 for any number of ranks."""

import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byte_cases import AXES, LAYOUTS, MODELS, RECIPES, SMOLLM2, Case, soak_cases, suite_cases
from engine_probes import small_chunks
from engine_runs import BOTH, Place, folder_digests, make_manifest, make_place
from quantfleet_worker import published
from quantfleet_worker.work_folder import begin_attempt, work_path

pytestmark = [pytest.mark.distributed, pytest.mark.demo]

MakePlace = Callable[[Case], Place]


@pytest.fixture
def make_case_place(
    tmp_path: Path,
    tiny_checkpoints: dict[str, Path],
    in_bfloat16: Callable[[Path], Path],
    demo: Any,
) -> MakePlace:
    """The place of a case; the real model is cut to two layers unless the test puts it whole."""

    def make(case: Case, model: Path = demo.cut_model) -> Place:
        if case.model != SMOLLM2:
            return make_place(tmp_path, models=tiny_checkpoints)
        folder = in_bfloat16(model) if case.dtype == "bfloat16" else model
        place = make_place(tmp_path, models={case.checkpoint: folder})
        shutil.copyfile(demo.calibration, place.root / "data" / "calib.jsonl")
        return place

    return make


def digests(place: Place, case: Case, *, ranks: int, samples: int) -> dict[str, str]:
    """SHA-256 of every published file; the folder goes, because there are many of them."""
    chunks = nullcontext() if case.chunk_bytes is None else small_chunks(case.chunk_bytes)
    name = f"{ranks}-ranks-{samples}-samples"
    with chunks:
        place.publish(case.manifest(samples), ranks=ranks, output=name)
    found = folder_digests(place.output(name))
    shutil.rmtree(place.output(name))
    return found


def check_layouts(place: Place, case: Case) -> None:
    """Each layout against one rank with the same samples."""
    alone = {
        samples: digests(place, case, ranks=1, samples=samples)
        for samples in dict.fromkeys(samples for _, samples in case.layouts)
    }
    for ranks, samples in case.layouts:
        together = digests(place, case, ranks=ranks, samples=samples)
        assert together == alone[samples], f"{ranks} ranks, {samples} samples"
    tensors = [
        {digest for name, digest in found.items() if name.endswith(".safetensors")}
        for found in alone.values()
    ]
    assert len(tensors) == 1 or tensors[0] != tensors[1], "the samples do not matter"


@pytest.mark.parametrize("case", suite_cases(), ids=str)
def test_ranks_do_not_change_a_byte(case: Case, make_case_place: MakePlace) -> None:
    check_layouts(make_case_place(case), case)


def test_the_cases_cover_every_value_of_every_axis() -> None:
    cases = suite_cases()

    for recipe in RECIPES:
        own = [case for case in cases if case.recipe == recipe]
        assert {case.model for case in own} == set(MODELS)
        assert {layout for case in own for layout in case.layouts} == set(LAYOUTS)
        for axis, values in AXES.items():
            assert {getattr(case, axis) for case in own} == set(values), axis
    real = [case for case in cases if case.model == SMOLLM2]
    assert {layout for case in real for layout in case.layouts} == set(LAYOUTS)


@pytest.mark.soak
@pytest.mark.parametrize("case", list(soak_cases()), ids=str)
def test_ranks_do_not_change_a_byte_in_any_combination(
    case: Case, make_case_place: MakePlace
) -> None:
    check_layouts(make_case_place(case), case)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_ranks_do_not_change_a_byte_of_the_whole_real_model(
    recipe: str, dtype: str, make_case_place: Any, demo: Any
) -> None:
    found = next(x for x in suite_cases() if (x.recipe, x.model) == (recipe, SMOLLM2))
    case = replace(found, dtype=dtype, layouts=LAYOUTS, formats=BOTH)

    check_layouts(make_case_place(case, demo.model), case)


RUN_WORDS = re.compile(
    rb"\d{4}-\d\d-\d\d[T ]|attempt|world.?size|\branks?\b|hostname|/tmp|tmp_path|\.work\b"
)


def test_nothing_published_tells_of_the_run(place: Place) -> None:
    manifest = make_manifest("qwen2-float32-tied", {"scheme": "W8A8"}, formats=BOTH)
    place.publish(manifest, ranks=1, output="first")
    other = place.output("other")
    work_path(other).mkdir()
    for _ in range(3):
        begin_attempt(other)

    report = place.publish(manifest, ranks=3, output="other").report

    assert report is not None
    assert report["attempts"] == 4
    assert report["worldSize"] == 3
    assert folder_digests(place.output("first")) == folder_digests(place.output("other"))
    source = {path.name: path.read_bytes() for path in (place.root / "models").glob("*/*")}
    for path in place.output("other").rglob("*"):
        if path.is_file() and path.read_bytes() != source.get(path.name):
            assert not RUN_WORDS.findall(path.read_bytes()), path


def test_the_published_manifest_lists_every_file_by_its_digest(place: Place) -> None:
    manifest = make_manifest("qwen2-float32-tied", {"scheme": "W8A8"}, formats=BOTH)
    place.publish(manifest, ranks=2)
    output = place.output()

    found = folder_digests(output)
    assert found.pop(published.MANIFEST_NAME)
    listed = published.read_manifest(output).files
    assert {name: entry.sha256 for name, entry in listed.items()} == found
    assert {name: entry.size for name, entry in listed.items()} == {
        name: (output / name).stat().st_size for name in found
    }


def test_report_and_summary_lie_beside_the_folder_and_nothing_else_is_left(place: Place) -> None:
    place.publish(make_manifest("llama-float32-tied", {"scheme": "W8A8"}), ranks=2)

    left = sorted(path.name for path in place.output().parent.iterdir())
    assert left == ["result", "result.report.json", "result.report.md"]
    assert not list(place.output().rglob("*report*"))
