"""Reports and plans as tables of text.

Both come as nested mappings from the engine, which owns their content: nothing here fails on a
key that is missing or new.
"""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quantfleet_cli.failures import stop_writing

Tree = Mapping[str, object]

MOST_WARNINGS = 20
"""More than this would push the figures off the screen."""


class PatientConsole(Console):
    """A console that goes silent when its reader leaves; rich's own would end the process."""

    def on_broken_pipe(self) -> None:
        """Drops all further output."""
        self.quiet = True
        stop_writing(sys.stdout)


def plain_console() -> Console:
    """A console on stdout that reads no markup, since names of users may look like some."""
    terminal = sys.stdout.isatty()
    width = None if terminal else shutil.get_terminal_size((120, 24)).columns
    return PatientConsole(
        file=sys.stdout,
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        width=width,
    )


def show_report(report: Tree, output: Path | None, console: Console) -> None:
    """The end of a run: perplexities, sizes, time by phase, output folder, warnings."""
    table = _pairs_table()
    for name, shown in _report_rows(report, output):
        table.add_row(Text(name), Text(shown))
    console.print(table)
    warnings = _list(report.get("warnings"))
    for warning in warnings[:MOST_WARNINGS]:
        console.print(Text(f"warning: {warning}"))
    if len(warnings) > MOST_WARNINGS:
        console.print(Text(f"and {len(warnings) - MOST_WARNINGS} warnings more in the report"))


def _report_rows(report: Tree, output: Path | None) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    evaluation = _tree(report.get("evaluation"))
    for key, name in (
        ("floatPerplexity", "perplexity, float"),
        ("quantizedPerplexity", "perplexity, quantized"),
        ("ratio", "ratio"),
    ):
        if key in evaluation:
            rows.append((name, shown_value(key, evaluation[key])))
    size = _tree(report.get("size"))
    source = size.get("sourceBytes")
    if source is not None:
        rows.append(("size before", shown_value("sourceBytes", source)))
    for name, amount in _tree(size.get("outputBytes")).items():
        share = ""
        if _is_number(source) and _is_number(amount) and source:
            share = f" ({100 * amount / source:.0f} %)"  # type: ignore[operator]
        rows.append((f"size after, {name}", shown_value("outputBytes", amount) + share))
    for phase, seconds in _tree(report.get("secondsByPhase")).items():
        rows.append((f"time, {title(phase)}", shown_value("seconds", seconds)))
    if "seconds" in report:
        rows.append(("time, all", shown_value("seconds", report["seconds"])))
    folder = report.get("output", output)
    if folder is not None:
        rows.append(("output", str(folder)))
    return rows


def show_tree(tree: Tree, console: Console, heading: str = "") -> None:
    """Scalars as a table of pairs, lists of mappings as tables, mappings as sections."""
    pairs = _pairs_table()
    sections: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) or _is_table(value):
            sections.append((key, value))
        else:
            pairs.add_row(Text(title(key)), Text(shown_value(key, value)))
    if heading and (pairs.row_count or not sections):
        console.print(Text(f"\n{heading}"))
    if pairs.row_count:
        console.print(pairs)
    for key, value in sections:
        name = f"{heading}: {title(key)}" if heading else title(key)
        if isinstance(value, Mapping):
            show_tree(value, console, name)
        else:
            console.print(Text(f"\n{name}"))
            console.print(_rows_table(_list(value)))


def _rows_table(rows: Sequence[object]) -> Table:
    trees = [_tree(row) for row in rows]
    columns = list(dict.fromkeys(key for row in trees for key in row))
    table = Table(box=box.ASCII2, show_edge=False, pad_edge=False)
    for column in columns:
        numeric = all(_is_number(row.get(column, 0)) for row in trees)
        table.add_column(
            Text(title(column)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in trees:
        table.add_row(*(Text(shown_value(key, row[key]) if key in row else "") for key in columns))
    return table


def _pairs_table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def title(key: str) -> str:
    """`memoryBytes` and `memory_bytes` as people write it: `memory`; names stay as they are."""
    if not re.fullmatch(r"[a-z]+([A-Z][a-z0-9]*|_[a-z0-9]+)*", key):
        return key
    words = re.sub(r"([A-Z])", r" \1", key).replace("_", " ").lower().split()
    if len(words) > 1 and words[-1] in ("bytes", "seconds"):
        words = words[:-1]  # the value has the unit
    return " ".join(words)


def shown_value(key: str, value: object) -> str:
    """A value with its unit, which the key tells."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_number(value):
        return _shown_number(key.lower(), value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return ", ".join(f"{title(k)} {shown_value(k, v)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(shown_value(key, item) for item in value) or "none"
    return str(value)


def _shown_number(key: str, value: float) -> str:
    if key.endswith("bytes"):
        return shown_bytes(value)
    if key.endswith("seconds"):
        return f"{value:,.1f} s"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}" if 0.001 <= abs(value) < 1e6 else f"{value:.4g}"


def shown_bytes(count: float) -> str:
    """For example `513 B` or `256.6 MiB`."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    amount, units = count / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while abs(amount) >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:,.1f} {units[0]}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_table(value: object) -> bool:
    rows = _list(value)
    return bool(rows) and all(isinstance(row, Mapping) for row in rows)


def _tree(value: object) -> Tree:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []
