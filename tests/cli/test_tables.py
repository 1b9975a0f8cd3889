"""The tables at the end of a run and of a plan, from whatever the engine gives."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from quantfleet_cli.tables import show_report, show_tree, shown_bytes, title


def _console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, markup=False, emoji=False, highlight=False), out


REPORT = {
    "evaluation": {"floatPerplexity": 18.25, "quantizedPerplexity": 18.75, "ratio": 1.0274},
    "size": {"sourceBytes": 1 << 28, "outputBytes": {"CompressedTensors": 1 << 27}},
    "secondsByPhase": {"read": 1.25, "forward": 60.0},
    "seconds": 75.5,
    "output": "/out/[bold]o",
    "warnings": ["3 samples [dropped]"],
}


def test_report_table_has_every_figure() -> None:
    console, out = _console()

    show_report(REPORT, None, console)

    assert [" ".join(line.split()) for line in out.getvalue().splitlines()] == [
        "perplexity, float 18.2500",
        "perplexity, quantized 18.7500",
        "ratio 1.0274",
        "size before 256.0 MiB",
        "size after, CompressedTensors 128.0 MiB (50 %)",
        "time, read 1.2 s",
        "time, forward 60.0 s",
        "time, all 75.5 s",
        "output /out/[bold]o",
        "warning: 3 samples [dropped]",
    ]


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"evaluation": None, "size": None, "warnings": None, "secondsByPhase": None},
        {"size": {"sourceBytes": 0, "outputBytes": {"Ascend": 5}}},
        {"size": {"outputBytes": 5}, "evaluation": {"ratio": None}, "seconds": "soon"},
    ],
    ids=repr,
)
def test_report_with_less_is_shown_as_far_as_it_goes(report: dict[str, object]) -> None:
    console, out = _console()

    show_report(report, Path("/out/o"), console)

    assert "/out/o" in out.getvalue()


def test_tree_shows_scalars_sections_and_tables() -> None:
    console, out = _console()

    show_tree(
        {
            "numLayers": 3,
            "formats": ["CompressedTensors"],
            "memory": {"weightsBytes": 2048, "total": {"sumBytes": 1}},
            "layers": [{"name": "model.layers.0", "bytes": 1}, {"name": "b", "sites": None}],
            "notes": [],
        },
        console,
    )

    assert [" ".join(line.split()) for line in out.getvalue().splitlines()] == [
        "num layers 3",
        "formats CompressedTensors",
        "notes none",
        "",
        "memory",
        "weights 2.0 KiB",
        "",
        "memory: total",
        "sum 1 B",
        "",
        "layers",
        "name | bytes | sites",
        "---------------+-------+------",
        "model.layers.0 | 1 B |",
        "b | | -",
    ]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("peakMemoryBytes", "peak memory"),
        ("bytes", "bytes"),
        ("eta_seconds", "eta"),
        ("CompressedTensors", "CompressedTensors"),
        ("model.layers.0", "model.layers.0"),
    ],
)
def test_title(key: str, text: str) -> None:
    assert title(key) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**40, "1.0 TiB"),
        (2**60, "1,048,576.0 TiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert shown_bytes(count) == text


def test_many_warnings_are_cut_and_counted() -> None:
    console, out = _console()

    show_report({"warnings": [f"number {index}" for index in range(23)]}, None, console)

    lines = out.getvalue().split("\n")
    assert "warning: number 19" in lines
    assert "warning: number 20" not in lines
    assert "and 3 warnings more in the report" in lines
