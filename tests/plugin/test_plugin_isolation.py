"""What the plugin costs those who do not use it, and whom it can do without."""

from __future__ import annotations

import sys

import pytest

HEAVY = ("torch", "triton", "vllm", "numpy")
PLAIN = "def test_plain(): ...\n"
ENGINE = """
import pytest

@pytest.mark.acceptance_rate(0.5)
def test_it(spec_engine):
    spec_engine.generate()
"""


def imported(result: pytest.RunResult) -> set[str]:
    """Top-level names in the report of ``-X importtime``."""
    return {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in result.errlines
        if line.startswith("import time:")
    }


@pytest.mark.parametrize(
    "args",
    [
        ["--version", "--version"],
        [],
        ["-v", "--acceptance-rate=0.3", "--synthaccept-checks=none", "--synthaccept-tokens=2"],
        ["--markers"],
        ["--fixtures"],
    ],
)
def test_nothing_heavy_is_imported(pytester, args):
    pytester.makepyfile(PLAIN)
    # Others' plugins must not do it in our place.
    others = ["-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:benchmark", "-p", "no:xdist"]
    result = pytester.run(sys.executable, "-X", "importtime", "-m", "pytest", *others, *args)
    assert result.ret == 0
    names = imported(result)
    assert "pytest_synthaccept" in names
    assert not names.intersection(HEAVY)


def test_collecting_marked_tests_imports_nothing_heavy(stub):
    stub.makepyfile(ENGINE)
    others = ["-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:benchmark", "-p", "no:xdist"]
    result = stub.run(
        sys.executable, "-X", "importtime", "-m", "pytest", *others, "--acceptance-rate=0.3"
    )
    assert result.ret == 0
    assert not imported(result).intersection(HEAVY)


@pytest.mark.parametrize("absent", [["xdist"], ["benchmark"], ["xdist", "benchmark"]])
def test_without_other_plugins(stub, clean, absent):
    stub.makepyfile(ENGINE)
    args = [word for name in absent for word in ("-p", f"no:{name}")]
    clean(stub.runpytest("-W", "error", *args)).assert_outcomes(passed=1)


def test_without_autoload(stub, clean, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    stub.makepyfile(ENGINE)
    result = clean(stub.runpytest_subprocess("-p", "pytest_synthaccept.plugin", "-W", "error"))
    result.assert_outcomes(passed=1)


def test_by_environment_variable(stub, clean, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_synthaccept.plugin")
    stub.makepyfile(ENGINE)
    clean(stub.runpytest_subprocess("-W", "error")).assert_outcomes(passed=1)


def test_switched_off(pytester, clean):
    pytester.makepyfile(PLAIN)
    result = clean(pytester.runpytest_subprocess("-p", "no:synthaccept"))
    result.assert_outcomes(passed=1)
    assert "synthaccept-" not in str(result.stdout)


def test_strict_project(stub, clean):
    stub.makeini("[pytest]\nacceptance_rate = 0.5\nsynthaccept_checks = acceptance\n")
    stub.makepyfile(ENGINE)
    strict = ["--strict-markers", "--strict-config", "-W", "error"]
    clean(stub.runpytest(*strict)).assert_outcomes(passed=1)
