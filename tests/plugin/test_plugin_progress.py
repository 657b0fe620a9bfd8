"""A line on the terminal while an engine starts, past the capture."""

from __future__ import annotations

import pytest

CONFTEST = """
import pytest
from pytest_synthaccept.report import terminal

@pytest.fixture
def slow(request):
    show = terminal.progress(request.config)
    if show:
        show("starting engine: tiny")
        show("engine ready")
    yield show
"""
TEST = """
def test_it(slow):
    print("captured")
    assert slow
"""
LINES = ["synthaccept: starting engine: tiny", "synthaccept: engine ready"]


@pytest.mark.parametrize(
    "args", [[], ["-v"], ["-q", "--capture=sys"], ["-s"], ["-p", "no:capture"]]
)
def test_lines_of_their_own(pytester, args):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess(*args)
    result.assert_outcomes(passed=1)
    start = result.outlines.index(LINES[0])
    assert result.outlines[start + 1] == LINES[1]
    assert ("captured" in str(result.stdout)) == (args in (["-s"], ["-p", "no:capture"]))


@pytest.mark.parametrize("args", [["-q", "-q"], ["-n2"], ["-p", "no:terminal"]])
def test_silent(pytester, args):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST.replace("assert slow", "assert slow is None"))
    result = pytester.runpytest(*args)
    assert result.ret == 0
    assert "starting engine" not in str(result.stdout)
