"""The terminal's part: a table at the end, and a line while an engine starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from pytest_synthaccept.errors import INCONCLUSIVE
from pytest_synthaccept.report import ATTRIBUTE, INCONCLUSIVE_ATTRIBUTE

COLUMNS = ("test", "requested", "rate", "length", "per position", "steps", "checks")
# Where the terminal is narrow, these two shrink, down to this; then columns go, in this order.
# With K = 3 all of them fit into 80.
NARROWEST = {"requested": 11, "test": 20}
EXPENDABLE = ("per position", "checks", "requested", "length")
DEFAULT_LAW = " (geometric)"
LEGEND = (
    "rate: accepted/drafted; length: tokens per verification step with the bonus;",
    "per position: % of the steps with a draft 1, 2, ... that accepted it.",
)

Row = tuple[str, dict[str, Any]]  # node id, record of one run


def summarise(terminal: pytest.TerminalReporter) -> None:
    """Write the table, once some test ran an engine."""
    if terminal.config.get_verbosity() < -1:
        return
    reports = [report for reports in terminal.stats.values() for report in reports]
    rows = _rows(reports)
    if rows:
        terminal.section("synthaccept")
        for line in table(rows, terminal.config.get_terminal_writer().fullwidth):
            terminal.line(line)
        terminal.line(_cost(reports))
    for report in terminal.stats.get(INCONCLUSIVE, ()):
        reason = getattr(report, INCONCLUSIVE_ATTRIBUTE)
        terminal.line(f"INCONCLUSIVE {report.nodeid}: {reason}", yellow=True)


def status(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """The category of a test that proved nothing; None leaves a test to pytest."""
    if not hasattr(report, INCONCLUSIVE_ATTRIBUTE):
        return None
    return INCONCLUSIVE, "?", ("INCONCLUSIVE", {"yellow": True})


def _cost(reports: Sequence[Any]) -> str:
    """What the checks cost, and the runs they compare with, which tests share."""
    found = [report for report in reports if getattr(report, ATTRIBUTE, None)]
    records = [record for report in found for record in getattr(report, ATTRIBUTE)]
    checks = sum(record["check_seconds"] for record in records)
    reference = sum(record["reference_seconds"] for record in records)
    rest = sum(report.duration for report in found) - reference
    share = f" ({100 * checks / rest:.1f} % of these tests)" if rest > 0 else ""
    line = f"Checks took {checks:.2f} s{share}"
    return f"{line}; reference runs, made once, {reference:.1f} s." if reference else f"{line}."


def _rows(reports: Iterable[Any]) -> list[Row]:
    """In the order of the tests in their files, as xdist reports them in any order."""
    found = [report for report in reports if getattr(report, ATTRIBUTE, None)]
    found.sort(key=lambda report: (report.location[0], report.location[1] or 0, report.nodeid))
    return [(report.nodeid, record) for report in found for record in getattr(report, ATTRIBUTE)]


def table(rows: Sequence[Row], width: int) -> list[str]:
    """The lines: a row per run in aligned columns, the legend, and why checks were skipped."""
    cells = [dict(zip(COLUMNS, COLUMNS, strict=True)), *map(_cells, rows)]
    widths = {name: max(len(row[name]) for row in cells) for name in COLUMNS}
    rest = width - 1  # a full last column would wrap
    for name in EXPENDABLE:
        if sum(min(w, NARROWEST.get(n, w)) + 2 for n, w in widths.items()) - 2 <= rest:
            break
        del widths[name]
    for name, narrowest in reversed(NARROWEST.items()):
        if name in widths:
            spare = rest - (_total(widths) - widths[name])
            widths[name] = min(widths[name], max(narrowest, spare))
    left_out = [name for name in COLUMNS if name not in widths]
    lines = [_line(row, widths) for row in cells]
    lines += LEGEND
    if left_out:
        lines.append(f"Left out for want of width: {', '.join(left_out)}.")
    return lines + _check_lines(rows)


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _line(row: dict[str, str], widths: dict[str, int]) -> str:
    cells = []
    for name, width in widths.items():
        text = row[name]
        if len(text) > width and name == "test":  # the end of a node id tells tests apart
            text = "..." + text[len(text) - width + 3 :]
        elif len(text) > width:
            text = text[: width - 3] + "..."
        numeric = name in ("rate", "length", "steps")
        cells.append(text.rjust(width) if numeric else text.ljust(width))
    return "  ".join(cells).rstrip()


def _cells(row: Row) -> dict[str, str]:
    nodeid, record = row
    per_position = " ".join(f"{100 * rate:.0f}" for rate in record["per_position"])
    return {
        "test": nodeid,
        "requested": record["requested"].removesuffix(DEFAULT_LAW) or "-",
        "rate": _number(record["rate"]),
        "length": _number(record["length"]),
        "per position": per_position or "-",
        "steps": str(record["steps"]),
        "checks": _checks_cell(record),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _checks_cell(record: dict[str, Any]) -> str:
    count = Counter(_outcome(result) for result in record["checks"].values())
    count["failed"] += record["failed"]
    return ", ".join(f"{n} {outcome}" for outcome, n in count.items() if n) or "-"


def _outcome(result: str) -> str:
    """ "passed", or "skipped" of "skipped: reason"."""
    return result.partition(":")[0]


def _check_lines(rows: Sequence[Row]) -> list[str]:
    passed: dict[str, None] = {}
    skipped: Counter[tuple[str, str]] = Counter()
    for _, record in rows:
        for name, result in record["checks"].items():
            if _outcome(result) == "passed":
                passed[name] = None
            else:
                skipped[name, result] += 1
    lines = [f"Checks that passed: {', '.join(passed)}."] if passed else []
    for (name, result), n in skipped.items():
        lines.append(f"{name} {result} ({n} run{'s' if n > 1 else ''})")
    return lines


def progress(config: pytest.Config) -> Callable[[str], None] | None:
    """A function that shows a line at once, or None where there is no terminal to show it on."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    # An xdist worker has a terminal reporter, too, but what it writes goes nowhere good.
    if terminal is None or hasattr(config, "workerinput") or config.get_verbosity() < -1:
        return None
    capture = config.pluginmanager.getplugin("capturemanager")

    def show(text: str) -> None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            terminal.write_line(f"synthaccept: {text}")
            terminal.flush()

    return show
