from __future__ import annotations

from pathlib import Path

import pytest

STUB = Path(__file__).with_name("stub_engine.py")


@pytest.fixture
def stub(pytester: pytest.Pytester) -> pytest.Pytester:
    """An inner project whose engines are stubs."""
    pytester.makeconftest(STUB.read_text())
    return pytester


@pytest.fixture
def bench(stub: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An inner project whose engines can be timed, by a stub of a clock.

    Its runs are processes: the stubs replace parts of the plugin. They are nobody's workers, as
    pytest-benchmark would take them for where these tests themselves run under xdist.
    """
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    more = STUB.with_name("stub_benchmark.py").read_text()
    stub.makeconftest(f"{STUB.read_text()}\n\n{more}")
    stub.runpytest = stub.runpytest_subprocess
    return stub


@pytest.fixture
def clean():
    """Call it with a result: nothing of a crash may show anywhere."""

    def check(result: pytest.RunResult) -> pytest.RunResult:
        text = "\n".join(result.outlines + result.errlines)
        assert "INTERNALERROR" not in text, text
        assert "Traceback" not in text, text
        return result

    return check


@pytest.fixture(autouse=True)
def _own_rootdir(pytester: pytest.Pytester) -> None:
    """With TMPDIR inside this repository, inner runs would take up its pyproject.toml."""
    pytester.makeini("[pytest]")


@pytest.fixture(autouse=True)
def _without_hypothesis(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plugin imports all of itself at the end of each inner run, a second each time."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
