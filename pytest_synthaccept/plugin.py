"""The pytest plugin: hooks that delegate. Imports nothing heavy; state lives in stashes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_synthaccept import benchmarking, fixtures, gating, markers, options, report
from pytest_synthaccept.report import terminal


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set the CPU runtime up before a conftest or a test module imports vllm."""
    options.arm_cpu_runtime(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the doctor in place of the tests."""
    if not config.getoption("synthaccept_doctor"):
        return None
    from pytest_synthaccept import doctor

    return doctor.main(config)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, make the marker and the fixtures known."""
    options.configure(config)
    markers.register(config)
    config.pluginmanager.register(fixtures, "synthaccept-fixtures")
    benchmarking.configure(config)
    gating.configure(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which options are in force."""
    return options.header(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Apply ``--acceptance-rate``."""
    markers.parametrize(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Check the markers, where those of ``pytest.param`` show as well."""
    return markers.select((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """A user's mistake in a fixture is one line too."""
    with report.outcomes(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check the engine runs of a test whose body passed."""
    with report.outcomes(item):
        try:
            result = yield
        finally:
            report.body_over(item)
        report.check(item)
        return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the test's runs on its report."""
    made = yield
    report.attach(item, made)
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> Any:
    """A test that proved nothing is counted apart."""
    return terminal.status(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the table, the curves, and what the gate says."""
    terminal.summarise(terminalreporter)
    benchmarking.summarise(terminalreporter)
    gating.summarise(terminalreporter)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Shut the engines down."""
    fixtures.close_pool(session.config)
