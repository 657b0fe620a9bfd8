"""The grammar of ``--synthaccept-fail``: which regressions fail the gate. Pure.

expression = condition {"," condition}
condition  = "work"
           | "break-even" ":" RATE            the rate may rise by so much
           | "step-time" ":" (PERCENT | TIME)  an engine step may take so much longer
           | "speedup" "@" RATE ":" (PERCENT | NUMBER)  the speedup may fall by so much
PERCENT    = NUMBER "%"
TIME       = NUMBER ("s" | "ms" | "us")
"""

from __future__ import annotations

import re
from typing import NamedTuple

WORK, BREAK_EVEN, STEP_TIME, SPEEDUP = "work", "break-even", "step-time", "speedup"

# What amounts each may have, by unit; and how a message spells them.
_UNITS = {
    WORK: (),
    BREAK_EVEN: ("",),
    STEP_TIME: ("%", "s", "ms", "us"),
    SPEEDUP: ("%", ""),
}
_EXAMPLES = {
    WORK: "work",
    BREAK_EVEN: "break-even:0.05",
    STEP_TIME: "step-time:10%, or step-time:2ms",
    SPEEDUP: "speedup@0.7:10%, or speedup@0.7:0.2",
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_CONDITION = re.compile(
    rf"(?P<name>[a-z-]+)(?:@(?P<at>{_NUMBER}))?(?::(?P<amount>{_NUMBER})(?P<unit>%|[a-z]*))?"
)


class Condition(NamedTuple):
    """One condition: ``allowed`` is a share if ``relative``, else a rate, seconds or a number."""

    name: str
    text: str
    at: float | None = None
    allowed: float = 0.0
    relative: bool = False


DEFAULT = (Condition(WORK, WORK),)


def parse(text: str) -> tuple[Condition, ...]:
    """The conditions of an expression; ValueError with what is allowed at the first bad one."""
    found = tuple(_condition(part.strip()) for part in text.split(","))
    seen = set()
    for condition in found:
        if (condition.name, condition.at) in seen:
            raise ValueError(f"has {_of(condition)} twice; give each condition once")
        seen.add((condition.name, condition.at))
    return found


def _of(condition: Condition) -> str:
    return condition.name if condition.at is None else f"{condition.name}@{condition.at:g}"


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None or match["name"] not in _UNITS:
        raise ValueError(f"has {text!r}, not a condition; allowed: {'; '.join(_EXAMPLES.values())}")
    name, at, amount, unit = match["name"], match["at"], match["amount"], match["unit"]
    wrong = (
        (at is None) == (name == SPEEDUP)
        or (amount is None) == bool(_UNITS[name])
        or (amount is not None and unit not in _UNITS[name])
        or not 0 <= float(at or 0) <= 1
    )
    if wrong:
        raise ValueError(f"has {text!r}; write it as {_EXAMPLES[name]}")
    number = float(amount or 0)
    if unit == "%":
        number /= 100
    return Condition(
        name,
        text,
        None if at is None else float(at),
        number * _SECONDS.get(unit or "", 1.0),
        unit == "%",
    )
