"""The file of ``--synthaccept-baseline``: what each benchmark measured when all was well. Pure.

JSON, made to be committed: keys in order, one number to a line, infinities in words.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_synthaccept.bench.bootstrap import Interval
from pytest_synthaccept.bench.gate import Entry
from pytest_synthaccept.errors import BenchmarkError
from pytest_synthaccept.run import Work

FORMAT = 1
_WORDS = {"always": -math.inf, "never": math.inf}


def read(path: Path) -> dict[str, Entry]:
    """The entries by node id; BenchmarkError of one line where it is no such file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BenchmarkError("does not exist; write it with --synthaccept-update=new") from None
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or data.get("synthaccept_baseline") != FORMAT:
        raise BenchmarkError(
            f"is not a baseline of format {FORMAT}; write one with --synthaccept-update=all"
        )
    try:
        return {name: _entry(row) for name, row in data["benchmarks"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"is damaged ({type(error).__name__}: {error})"
        raise BenchmarkError(f"{what}; write it with --synthaccept-update=all") from None


def write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write all entries, at once or not at all."""
    benchmarks = {name: _row(entry) for name, entry in sorted(entries.items())}
    data = {"synthaccept_baseline": FORMAT, "benchmarks": benchmarks}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "same": dict(entry.same),
        "clock": dict(entry.clock),
        "break_even": entry.break_even and _numbers(entry.break_even),
        "step_seconds": entry.step_seconds and _numbers(entry.step_seconds),
        "speedup": {repr(rate): _numbers(found) for rate, found in entry.speedup.items()},
        "work": {
            name: work and {field: getattr(work, field) for field in Work.__slots__}
            for name, work in entry.work.items()
        },
    }


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(
        same=dict(row["same"]),
        clock=dict(row["clock"]),
        break_even=_interval(row["break_even"]),
        step_seconds=_interval(row["step_seconds"]),
        speedup={
            float(rate): found
            for rate, numbers in row["speedup"].items()
            if (found := _interval(numbers))
        },
        work={name: work and Work(**work) for name, work in row["work"].items()},
    )


def _numbers(found: Interval) -> list[float | str]:
    words = {value: word for word, value in _WORDS.items()}
    return [words.get(value, value) for value in found]


def _interval(numbers: list[float | str] | None) -> Interval | None:
    if numbers is None:
        return None
    value, low, high = (_WORDS[n] if isinstance(n, str) else float(n) for n in numbers)
    return Interval(value, low, high)
