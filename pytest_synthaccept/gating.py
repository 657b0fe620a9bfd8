"""The gate of ``--synthaccept-baseline``: judged when the tests are over, shown at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_synthaccept import benchmarking, options
from pytest_synthaccept.errors import BenchmarkError

if TYPE_CHECKING:
    from pytest_synthaccept.bench.expression import Condition
    from pytest_synthaccept.bench.gate import Entry, Verdict

OPTION = "--synthaccept-baseline"


@dataclass
class Gate:
    """A gate under way: what it was asked, and from ``judge`` on what it says."""

    path: Path
    conditions: tuple[Condition, ...]
    update: str | None
    baseline: dict[str, Entry]
    verdicts: list[Verdict] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def judge(self, measured: dict[str, Entry]) -> None:
        """Compare what is to be compared, and write what is to be written."""
        from pytest_synthaccept.bench import baseline_file, gate

        new = [name for name in measured if name not in self.baseline]
        self.written = list(measured) if self.update == "all" else new if self.update else []
        left = {name: entry for name, entry in measured.items() if name not in self.written}
        if left or not self.written:
            self.verdicts = gate.judge(left, self.baseline, self.conditions)
        if self.written:
            entries = self.baseline | {name: measured[name] for name in self.written}
            baseline_file.write(self.path, entries)

    @property
    def failed(self) -> bool:
        """Anything but passed: also what could not be told."""
        return any(verdict.outcome != "passed" for verdict in self.verdicts)


GATE = pytest.StashKey[Gate]()


def configure(config: pytest.Config) -> None:
    """Read the baseline; ``pytest.UsageError`` with one line where there can be no gate."""
    now = options.settings(config)
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    if now.baseline is None:
        for name in ("fail", "update"):
            if name in now.given and now.given[name] == "option":
                raise pytest.UsageError(f"{now.place(name)}: there is no baseline; give {OPTION}")
        return
    place = now.place("baseline")
    if now.given["baseline"] == "ini" and getattr(config.option, "benchmark_skip", False):
        return  # the parallel lane of a project whose other lane has the gate
    if not hasattr(config.option, "benchmark_disable"):
        raise pytest.UsageError(f"{place}: the gate needs pytest-benchmark, which is not active")
    if benchmarking.xdist_active(config):
        raise pytest.UsageError(
            f"{place}: pytest-benchmark switches itself off under xdist, so the gate would "
            f"measure nothing; {benchmarking.TWO_LANES}"
        )
    from pytest_synthaccept.bench import baseline_file
    from pytest_synthaccept.bench.expression import DEFAULT

    path = Path(now.baseline)
    if now.given["baseline"] == "ini" and config.inipath is not None:
        path = config.inipath.parent / path
    try:
        baseline = {} if now.update and not path.exists() else baseline_file.read(path)
    except BenchmarkError as error:
        if now.update != "all":
            raise pytest.UsageError(f"{place}: {now.baseline!r} {error}") from None
        baseline = {}
    config.stash[GATE] = Gate(path, now.fail or DEFAULT, now.update, baseline)
    config.pluginmanager.register(_Hooks(), "synthaccept-gate")


class _Hooks:
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge; a gate that fails makes a run that passed a failed one."""
        gate = session.config.stash[GATE]
        found = session.config.stash[benchmarking.MEASURED]
        gate.judge({name: measured.entry for name, measured in found.items()})
        if gate.failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def summarise(terminal: pytest.TerminalReporter) -> None:
    """The gate's section: red where it failed, with every verdict that is not passed."""
    gate = terminal.config.stash.get(GATE, None)
    if gate is None:
        return
    bad = [verdict for verdict in gate.verdicts if verdict.outcome != "passed"]
    title = f"synthaccept gate: {'FAILED' if bad else 'passed'}"
    terminal.section(title, red=bool(bad), green=not bad)
    shown = gate.verdicts if terminal.config.get_verbosity() > 0 else bad
    for verdict in shown:
        terminal.line(
            f"{verdict.outcome.upper()} {verdict.benchmark} {verdict.why}",
            red=verdict.outcome != "passed",
        )
    passed = len(gate.verdicts) - len(bad)
    terminal.line(f"{passed} of {len(gate.verdicts)} conditions hold against {gate.path}")
    if gate.written:
        terminal.line(f"wrote {len(gate.written)} benchmarks to {gate.path}")
    elif bad:
        terminal.line("where the change is meant, accept it with --synthaccept-update=all")
