"""``spec_benchmark`` and the hooks of pytest-benchmark: thin, and only where that is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_synthaccept.errors import BenchmarkError
from pytest_synthaccept.markers import BENCHMARK_FIXTURE, closest

if TYPE_CHECKING:
    from pytest_synthaccept.bench.curve import Curve
    from pytest_synthaccept.bench.fixture import SpecBenchmark
    from pytest_synthaccept.bench.gate import Entry
    from pytest_synthaccept.bench.meter import Meter
    from pytest_synthaccept.fixtures import SpecEngineFactory

MACHINE_KEY = "synthaccept"  # of pytest-benchmark's machine_info
UNTIMED_ATTRIBUTE = "synthaccept_untimed"  # of a test report: why its benchmark was not timed
TWO_LANES = "run `-n auto --benchmark-skip`, and the benchmarks apart: `-n0 --benchmark-only`"


@dataclass
class Measured:
    """What a test measured; it counts once the test has passed."""

    entry: Entry
    curve: Curve | None


METER: pytest.StashKey[Meter] = pytest.StashKey()
FOUND = pytest.StashKey[Measured]()
UNTIMED = pytest.StashKey[str]()
MEASURED = pytest.StashKey[dict[str, Measured]]()  # of the config: by node id


def configure(config: pytest.Config) -> None:
    """Make the fixture known, or what says that pytest-benchmark is missing."""
    config.stash[MEASURED] = {}
    present = hasattr(config.option, "benchmark_disable")
    plugin = _WithPytestBenchmark() if present else _WithoutPytestBenchmark()
    config.pluginmanager.register(plugin, "synthaccept-benchmarking")


def xdist_active(config: pytest.Config) -> bool:
    """In the controller or in a worker."""
    return config.getoption("dist", "no") != "no" or hasattr(config, "workerinput")


def summarise(terminal: pytest.TerminalReporter) -> None:
    """The curves, and what was not timed and why."""
    config = terminal.config
    if config.get_verbosity() < -1:
        return
    for nodeid, found in config.stash[MEASURED].items():
        if found.curve is not None:
            terminal.section(f"sweep of {nodeid}", sep="-")
            for line in found.curve.table():
                terminal.line(line)
    reports = [report for reports in terminal.stats.values() for report in reports]
    untimed = [r for r in reports if hasattr(r, UNTIMED_ATTRIBUTE)]
    for why in dict.fromkeys(getattr(report, UNTIMED_ATTRIBUTE) for report in untimed):
        count = sum(getattr(report, UNTIMED_ATTRIBUTE) == why for report in untimed)
        terminal.line(
            f"synthaccept: {count} benchmark{'s' if count > 1 else ''} ran once and untimed: {why}",
            yellow=True,
        )


class _WithoutPytestBenchmark:
    @pytest.fixture
    def spec_benchmark(self) -> None:
        """Times an engine at a forced acceptance; needs pytest-benchmark."""
        raise BenchmarkError(
            "spec_benchmark needs pytest-benchmark, which is not active; "
            "pip install 'pytest-synthaccept[benchmark]', and do not disable it by -p no:benchmark"
        )


class _WithPytestBenchmark:
    @pytest.fixture
    def spec_benchmark(
        self,
        request: pytest.FixtureRequest,
        spec_engine_factory: SpecEngineFactory,
        benchmark: Any,
    ) -> SpecBenchmark:
        """Times an engine at this test's acceptance, or sweeps rates; see ``SpecBenchmark``."""
        from pytest_synthaccept.bench.fixture import SpecBenchmark
        from pytest_synthaccept.bench.workload import COST

        item, config = request.node, request.config
        if why := _not_measured(config, benchmark):
            item.stash[UNTIMED] = why

        def keep(entry: Entry, curve: Curve | None) -> None:
            item.stash[FOUND] = Measured(entry, curve)

        engine = spec_engine_factory()
        mark = closest(item)
        if mark is None or "cost" not in mark.kwargs:
            engine.cost = COST
        return SpecBenchmark(
            engine,
            benchmark,
            item.stash[METER],
            not_measured=why,
            keep=keep,
            compared=_compared(config, item.nodeid),
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give pytest-benchmark our timer, by its own marker; one that the test names wins."""
        if BENCHMARK_FIXTURE not in getattr(item, "fixturenames", ()):
            return
        from pytest_synthaccept.bench import meter as meters

        meter = item.stash[METER] = meters.Meter()
        marker = item.get_closest_marker("benchmark")
        given = {} if marker is None else marker.kwargs
        mark = pytest.mark.benchmark(**{"timer": meter.engine_seconds, **given})
        item.add_marker(mark, append=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Keep what a passed test measured; tell the controller what was not timed."""
        report = yield
        if report.when == "call":
            if item.stash.get(UNTIMED, ""):
                setattr(report, UNTIMED_ATTRIBUTE, item.stash[UNTIMED])
            found = item.stash.get(FOUND, None)
            if found is not None and report.passed:
                item.config.stash[MEASURED][item.nodeid] = found
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(
        self, config: pytest.Config, machine_info: dict[str, Any]
    ) -> None:
        """The GPU and the version of the plan, where a benchmark of ours ran."""
        if config.stash[MEASURED]:
            machine_info[MACHINE_KEY] = _machine()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_benchmark_compare_machine_info(
        self,
        config: pytest.Config,
        machine_info: dict[str, Any],
        compared_benchmark: dict[str, Any],
    ) -> None:
        """Refuse a comparison across GPUs or versions of the plan."""
        then = compared_benchmark["machine_info"].get(MACHINE_KEY)
        machine_info.pop(MACHINE_KEY, None)
        if then is None:
            return
        # pytest-benchmark compares the whole of it next, and would warn of what it lacks.
        now = machine_info[MACHINE_KEY] = _machine()
        for key in now:
            if now[key] != then.get(key):
                raise pytest.UsageError(
                    f"--benchmark-compare: {key.replace('_', ' ')} is {now[key]!r} here, "
                    f"{then.get(key)!r} in the saved run; compare runs of one machine and plan"
                )


def _machine() -> dict[str, Any]:
    """Stable values only: a comparison warns of any that differs."""
    from pytest_synthaccept.bench.identity import PLAN_VERSION, device_name

    return {"device": device_name(), "plan_version": PLAN_VERSION}


def _not_measured(config: pytest.Config, benchmark: Any) -> str:
    if benchmark.enabled:
        return ""
    if xdist_active(config):
        return f"pytest-benchmark switches itself off under xdist; {TWO_LANES}"
    return "pytest-benchmark is switched off; leave --benchmark-disable out"


def _compared(config: pytest.Config, nodeid: str) -> list[dict[str, Any]]:
    """``extra_info`` of this test in each saved run that it is compared with."""
    session: Any = config.pluginmanager.getplugin("pytest-benchmark")
    saved = getattr(session, "compared_mapping", None) or {}
    return [by_name[nodeid]["extra_info"] for by_name in saved.values() if nodeid in by_name]
