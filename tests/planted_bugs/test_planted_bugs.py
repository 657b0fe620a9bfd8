"""Every bug of ``bugs.py``, planted in the live engine: named by its check, request and step."""

import re

import pytest
from bugs import BUGS
from planting import Plant

from pytest_synthaccept.suite import PATTERNS
from pytest_synthaccept.suite.patterns import Stage

K = 3


def verdict(engine, pattern):
    """What is said of the pattern on this engine; None if nothing is."""
    error = None
    try:
        pattern.play(Stage(pattern.name, engine, seed=0))
    except Exception as raised:  # the engine's own collapse is a message too, but not ours
        error = raised
    for run in engine.runs:
        try:
            run.check()
        except AssertionError as failure:
            return str(failure)
    if error is None or isinstance(error, AssertionError):
        return error and str(error)
    return f"engine: {error!r}; {'; '.join(error.__notes__)}"


@pytest.fixture(scope="session")
def passed():
    """(pattern, engine arguments) that an engine without a bug has passed."""
    return set()


@pytest.fixture
def engine_for(spec_engine_factory, passed):
    """An engine for the pattern, which has passed before: what it compares with is known."""

    def get(bug):
        pattern = PATTERNS[bug.pattern]
        args = pattern.engine_args({}, K) | bug.engine
        engine = spec_engine_factory(**args)
        if (pattern.name, str(args)) not in passed:
            assert verdict(engine, pattern) is None
            passed.add((pattern.name, str(args)))
        engine.runs.clear()
        engine.llm.reset_prefix_cache()
        return engine

    return get


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_is_caught(bug, engine_for, monkeypatch):
    engine = engine_for(bug)
    with monkeypatch.context() as patch:
        bug.plant(Plant(engine, patch))
        message = verdict(engine, PATTERNS[bug.pattern])
    engine.runs.clear()  # judged here; the automatic checks would fail this test
    if bug.ruins:
        engine.failure = "ruined by a planted bug"
    if engine.alive:
        engine.llm.reset_prefix_cache()
    assert message is not None, f"not caught: {bug.says}"
    assert re.match(f"{bug.check}: (?:{bug.message})", message), message


def test_a_slot_that_the_reference_reads_too_is_found(engine_for, monkeypatch):
    """Both runs attend to a slot that holds no token: poison of two signs keeps them apart."""
    bug = next(bug for bug in BUGS if bug.name == "the-drafter-reads-a-rejected-slot")
    engine = engine_for(bug)
    monkeypatch.setattr(engine, "_visited", {})
    with monkeypatch.context() as patch:
        bug.plant(Plant(engine, patch))
        message = verdict(engine, PATTERNS[bug.pattern])
    engine.runs.clear()
    engine.llm.reset_prefix_cache()
    assert re.match(f"{bug.check}: (?:{bug.message})", message)


def test_there_are_enough_of_them():
    assert len(BUGS) >= 30
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert {kind for bug in BUGS for kind in bug.kind[0]} >= set("ABCDEGHI")
