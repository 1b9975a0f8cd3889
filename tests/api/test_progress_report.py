"""The report of a worker pod: what is taken, what is refused, and that the longest one fits."""

import json
from math import inf, nan

import pytest
from pydantic import ValidationError

from quantfleet_api.progress import Progress
from quantfleet_api.report import (
    MOST_BODY_BYTES,
    MOST_LAYERS,
    MOST_RANK_MESSAGE,
    MOST_RANKS,
    ProgressReport,
    RankReport,
    ReportAnswer,
    progress_url,
    rank_report,
)

RANK = {"rank": 3, "worldSize": 4, "stage": "Calibrating", "layer": 7, "numLayers": 32}
REPORT = {"attempt": 2, "pod": 1, "sequence": 5, "ranks": [RANK]}


def test_report_is_camel_case_and_comes_back_as_it_was() -> None:
    layer = {"layer": 6, "seconds": 1.5, "relativeError": 0.01, "repeated": True}
    summary = {"digest": "sha256:" + "a" * 64, "sizeBytes": 9, "fileCount": 2, "warnings": 0}
    message = {**REPORT, "final": True, "layers": [layer], "summary": summary}

    report = ProgressReport.model_validate_json(json.dumps(message))

    assert report.ranks[0].num_layers == 32
    dumped = report.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert dumped == message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"time": "2026-01-01T00:00:00Z"}, "time"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": 1000}, "attempt"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": 1.5}, "sequence"),
        ({"pod": "0"}, "pod"),
        ({"final": 1}, "final"),
        ({"ranks": []}, "ranks"),
        ({"ranks": [RANK] * (MOST_RANKS + 1)}, "ranks"),
        ({"ranks": [RANK | {"stage": "Resting"}]}, "ranks"),
        ({"ranks": [RANK | {"etaSeconds": -1}]}, "ranks"),
        ({"layers": [{"layer": 0, "seconds": 1}] * (MOST_LAYERS + 1)}, "layers"),
        ({"summary": {"digest": "md5:0"}}, "summary"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else value,
)
def test_what_is_not_of_the_schema_is_refused_by_name(
    change: dict[str, object], field: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        ProgressReport.model_validate_json(json.dumps(REPORT | change))

    assert caught.value.errors()[0]["loc"][0] == field


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["etaSeconds", "tokensPerSecond"])
def test_numbers_that_are_none_are_refused(field: str, number: str) -> None:
    text = json.dumps(REPORT | {"ranks": [RANK | {field: "N"}]}).replace('"N"', number)

    with pytest.raises(ValidationError):
        ProgressReport.model_validate_json(text)


def test_longest_report_fits_into_a_body() -> None:
    rank = rank_report(
        Progress(
            rank=2**20,
            world_size=2**20,
            stage="Calibrating",
            layer=2**31 - 1,
            num_layers=2**31 - 1,
            micro_batch=2**31 - 1,
            num_micro_batches=2**31 - 1,
            pass_index=2,
            num_passes=2,
            samples=2**31 - 1,
            num_samples=2**31 - 1,
            tokens_per_second=123456.7890123456,
            eta_seconds=1e99,
            message="\U0001f600" * 10_000,
        )
    )
    layer = {"layer": 2**31 - 1, "seconds": 12345.678901234567, "relativeError": 1.2345678901e-7}
    report = ProgressReport.model_validate(
        REPORT | {"ranks": [rank] * MOST_RANKS, "layers": [layer] * MOST_LAYERS}
    )

    text = report.model_dump_json(by_alias=True)

    assert len(text.encode()) < MOST_BODY_BYTES
    assert len(rank.message) == MOST_RANK_MESSAGE


@pytest.mark.parametrize("value", [inf, nan])
def test_rank_says_nothing_where_it_knows_nothing(value: float) -> None:
    progress = Progress(
        rank=0, world_size=1, stage="Solving", eta_seconds=value, tokens_per_second=value
    )

    assert rank_report(progress) == RankReport(rank=0, world_size=1, stage="Solving")


def test_every_field_of_progress_travels() -> None:
    assert set(RankReport.model_fields) == set(Progress.model_fields)


def test_answer_asks_for_nothing_by_default() -> None:
    assert ReportAnswer.model_validate({}).min_interval_seconds == 1.0


def test_url_is_the_address_of_the_server_and_the_job() -> None:
    url = progress_url("https://server.ns.svc:8443/", "team", "job")

    assert url == (
        "https://server.ns.svc:8443/apis/v1alpha1/namespaces/team/quantizationjobs/job/progress"
    )
