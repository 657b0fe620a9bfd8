"""A curve as lines of text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_synthaccept.bench.bootstrap import Interval
    from pytest_synthaccept.bench.curve import Curve

HEAD = ("rate", "realised", "length", "steps", "step time", "speedup (95 %)", "expected")


def show_number(value: float) -> str:
    """Two decimals: what a speedup is worth."""
    return f"{value:.2f}"


def show_rate(value: float) -> str:
    """An acceptance rate; in words where it lies outside of what was measured."""
    if math.isinf(value):
        return "above all rates measured" if value > 0 else "below all rates measured"
    return f"{value:.3f}"


def show_seconds(value: float) -> str:
    """Seconds in the unit that keeps three digits in front of the point at most."""
    if math.isnan(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def show_interval(found: Interval, show: Callable[[float], str] = show_number) -> str:
    """``0.61 (0.58..0.64)``."""
    return f"{show(found.value)} ({show(found.low)}..{show(found.high)})"


def curve_table(curve: Curve) -> list[str]:
    """A line per rate, the baseline, and what was found: aligned."""
    rows = [HEAD]
    for cell, rate in zip(curve.cells, curve.rates, strict=True):
        rows.append(
            (
                f"{rate:g}",
                "-" if cell.realised is None else f"{cell.realised:.3f}",
                f"{cell.length:.2f}",
                str(cell.steps),
                show_seconds(curve.step_seconds(rate).value),
                show_interval(curve.speedup(rate)),
                show_number(curve.expected_speedup(rate)),
            )
        )
    step = show_seconds(curve.baseline_step_seconds.value)
    rows.append(("none", "-", "1.00", str(curve.baseline.steps), step, "1.00", "1.00"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return [*lines, _summary(curve)]


def _summary(curve: Curve) -> str:
    costs = (
        f"a draft costs {show_seconds(curve.draft_seconds.value)}, "
        f"the rest of a step {show_seconds(curve.verification_seconds.value)}"
    )
    return (
        f"break-even rate {show_interval(curve.break_even, show_rate)}; {costs}; "
        f"{curve.rounds} rounds of {curve.tokens} tokens"
    )
