"""What the engine runs of a test say: the checks after its body, the records on its reports.

A record is builtins only, so that it reaches the terminal from an xdist worker too.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_synthaccept import options
from pytest_synthaccept.errors import Inconclusive, SynthacceptError

if TYPE_CHECKING:
    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.run import SpecRun

ATTRIBUTE = "synthaccept"  # of a test report: list of records, one per run
INCONCLUSIVE_ATTRIBUTE = "synthaccept_inconclusive"  # of a test report: the reason
HINT = "automatic check; --synthaccept-checks chooses"


@dataclass
class Used:
    """The engines a test was given, whether its body is over, the run that failed a check."""

    engines: list[SpecEngine] = field(default_factory=list)
    over: bool = False
    failed: SpecRun | None = None

    @property
    def runs(self) -> list[SpecRun]:
        """All runs of the test, engine by engine."""
        return [run for engine in self.engines for run in engine.runs]


USED = pytest.StashKey[Used]()
INCONCLUSIVE = pytest.StashKey[str]()  # why the test proved nothing


def body_over(item: pytest.Item) -> None:
    """The test's body has returned or raised: the next report is the one of the whole test."""
    if used := item.stash.get(USED, None):
        used.over = True


class CheckError(Exception):
    """A check failed after the test's body: the message, with a word on where it comes from."""


@contextmanager
def outcomes(item: pytest.Item) -> Iterator[None]:
    """What our own exceptions make of a test: failed in one line, or inconclusive."""
    try:
        yield
        return
    except (SynthacceptError, CheckError) as error:
        problem, inconclusive = _one_line(item, error), False
    except Inconclusive as outcome:
        problem, inconclusive = str(outcome), True
    if inconclusive:
        item.stash[INCONCLUSIVE] = problem
        raise pytest.skip.Exception(problem, _use_item_location=True) from None
    # A cause would be printed too.
    raise pytest.fail.Exception(problem, pytrace=False) from None


def _one_line(item: pytest.Item, error: Exception) -> str:
    """The error, at the line of the test that made it."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(item.path)
    ]
    place = f"{item.nodeid.split('::')[0]}:{lines[-1]}: " if lines else ""
    return f"{place}{error}"


def check(item: pytest.Item) -> None:
    """Run the selected checks on every run of the test; raise at the first that fails."""
    used = item.stash.get(USED, None)
    names = options.settings(item.config).checks
    if used is None or names == ():
        return
    if any(engine.has_open_run for engine in used.engines):
        raise CheckError(
            f"{item.nodeid}: a run was entered and never left, so nothing of it can be checked; "
            "use `with spec_engine.run() as run:`"
        )
    runs = used.runs
    for number, run in enumerate(runs, 1):
        try:
            run.check(*(names or ()))
        except (AssertionError, SynthacceptError) as error:
            used.failed = run
            hint = f"({HINT}; run {number} of {len(runs)} of this test)"
            raise CheckError(f"{error}\n{hint}") from None


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put a record per run on the report of the phase that ran the test, and into JUnit."""
    if report.skipped and (reason := item.stash.get(INCONCLUSIVE, None)):
        setattr(report, INCONCLUSIVE_ATTRIBUTE, reason)
    used = item.stash.get(USED, None)
    if used is None or not _is_of_the_test(report, used):
        return
    try:
        found = [_record(run, used) for run in used.runs]
    except Exception as error:
        # A run that its engine left half-made must not take the whole session down with it.
        report.sections.append(("synthaccept", f"no summary of this test's runs: {error!r}"))
        return
    if found:
        setattr(report, ATTRIBUTE, found)
        # On the item: JUnit reads the report of the teardown, which copies them from there.
        item.user_properties.append((ATTRIBUTE, json.dumps([_short(record) for record in found])))


def _is_of_the_test(report: pytest.TestReport, used: Used) -> bool:
    """Not a subtest's, which is made while the body runs, nor one of a phase around the test."""
    return (report.when == "call" and used.over) or (report.when == "setup" and report.failed)


def _record(run: SpecRun, used: Used) -> dict[str, Any]:
    """``SpecRun.summary()`` with ``checks`` (name -> result) and ``failed``."""
    return run.summary() | {"checks": dict(run.checked), "failed": run is used.failed}


def _short(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("requested", "rate", "length", "steps", "checks")}
