"""The report as text for people, in Markdown. Pure."""

from collections.abc import Mapping
from math import inf
from typing import Any

WORST = 10
"""Linears listed, those with the largest relative error."""


def summary_text(report: Mapping[str, Any]) -> str:
    """A page: result, cost, the worst linears, warnings."""
    lines = [f"# {report['output']}", ""]
    if report["gateMissed"]:
        lines += [f"**Rejected:** {report['gateMissed']}", ""]
    lines += [*_result(report), "", *_cost(report), "", *_worst(report), "", *_warnings(report)]
    return "\n".join(lines) + "\n"


def _result(report: Mapping[str, Any]) -> list[str]:
    samples, size = report["samples"], report["size"]
    lines = [
        f"- scheme: {report['recipe']['scheme']}, propagation {report['propagation']}",
        f"- samples: {samples['used']} of {samples['requested']} asked for "
        f"({samples['tokens_used']} tokens; {samples['dropped_short']} too short, "
        f"{samples['truncated']} truncated)",
        f"- size: {_megabytes(size['sourceBytes'])} before, "
        + ", ".join(
            f"{_megabytes(found)} as {name}" for name, found in size["outputBytes"].items()
        ),
        f"- plan: {report['planDigest']}",
    ]
    found = report["evaluation"]
    if found:
        lines.insert(
            1,
            f"- perplexity: {found['floatPerplexity']:.4f} float, "
            f"{found['quantizedPerplexity']:.4f} quantized, ratio {found['ratio']:.4f} "
            f"({found['windows']} windows of {found['windowLength']} tokens, float32)",
        )
    return lines


def _cost(report: Mapping[str, Any]) -> list[str]:
    lines = ["| phase | seconds (slowest rank) |", "|---|---|"]
    lines += [f"| {phase} | {seconds:.1f} |" for phase, seconds in report["secondsByPhase"].items()]
    ranks = report["ranks"]
    return [
        *lines,
        "",
        f"{report['worldSize']} ranks of {report['threads']} thread(s); "
        f"{_megabytes(sum(rank['bytesSent'] for rank in ranks))} sent in "
        f"{max(rank['exchangePhases'] for rank in ranks)} exchange phases; "
        f"peak memory of a rank {_megabytes(max(rank['peakMemoryBytes'] for rank in ranks))}.",
    ]


def _worst(report: Mapping[str, Any]) -> list[str]:
    linears = [linear for layer in report["layers"] for linear in layer["linears"]]
    errors = [inf if x["relative_error"] is None else x["relative_error"] for x in linears]
    worst = sorted(zip(errors, linears, strict=True), key=lambda pair: -pair[0])[:WORST]
    rows = [
        f"| {linear['name']} | {linear['scheme']} | {error:.4f} | {linear['measured_by']} |"
        for error, linear in worst
    ]
    return ["| linear | scheme | relative error | from |", "|---|---|---|---|", *rows]


def _warnings(report: Mapping[str, Any]) -> list[str]:
    if not report["warnings"]:
        return ["No warnings."]
    return ["Warnings:", *(f"- {warning}" for warning in report["warnings"])]


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB"
