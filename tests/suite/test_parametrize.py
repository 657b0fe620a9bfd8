"""``spec_patterns`` and its fixture: names, seeds, and patterns that do not come about."""

import pytest

from pytest_synthaccept import spec_patterns
from pytest_synthaccept.errors import AcceptanceError
from pytest_synthaccept.suite import PATTERNS, PatternError
from pytest_synthaccept.suite.patterns import Stage


def test_all_patterns_say_what_they_are():
    assert len(PATTERNS) >= 17
    assert all(pattern.says for pattern in PATTERNS.values())
    assert spec_patterns().args[1] == tuple(PATTERNS)


def test_an_unknown_name():
    with pytest.raises(AcceptanceError) as error:
        spec_patterns("full", "empty")
    assert str(error.value) == (
        f"spec_patterns: 'empty' is not a pattern; give some of {', '.join(PATTERNS)}"
    )


def test_a_pattern_that_does_not_come_about_fails(spec_engine, monkeypatch):
    """Nothing is cut off where the limits are wide: the pattern proved nothing."""
    play = Stage.play
    monkeypatch.setattr(Stage, "play", lambda self, p, s, n, **kw: play(self, p, [0], n, **kw))
    with pytest.raises(PatternError) as error:
        PATTERNS["max-tokens-inside"].play(Stage("max-tokens-inside", spec_engine, 0))
    assert str(error.value) == (
        "pattern max-tokens-inside: did not occur: 1 to K tokens of a run are cut off "
        "(K=3, block size 32, max_model_len 1024, seed 0)"
    )


def test_without_prefix_caching_replay_proves_nothing(spec_engine_factory):
    engine = spec_engine_factory(enable_prefix_caching=False)
    with pytest.raises(PatternError, match="prefix caching is off in this engine"):
        PATTERNS["replay"].play(Stage("replay", engine, 0))


INNER = """
from pytest_synthaccept import spec_patterns

@spec_patterns("full", "zero")
def test_mine(spec_pattern, spec_seed):
    print("seen", spec_pattern.name, spec_seed, spec_pattern._args)

@spec_patterns("gap")
def test_tight(spec_pattern):
    print("seen", spec_pattern._args["max_model_len"])
"""


def test_once_per_pattern_and_seed(pytester):
    pytester.makepyfile(test_it=INNER)
    result = pytester.runpytest("-rP", "-v", "--synthaccept-seed=3,5-6", "--acceptance-rate=0.5")
    result.assert_outcomes(passed=9)
    seen = [line for line in result.outlines if line.startswith("seen ")]
    names = [f"seen {name} {seed} {{}}" for seed in (3, 5, 6) for name in ("full", "zero")]
    assert sorted(seen) == sorted([*names, *["seen 160"] * 3])


def test_the_fixture_without_the_decorator(pytester):
    pytester.makepyfile("def test_it(spec_pattern): ...")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    assert (
        "spec_pattern: mark the test with @spec_patterns(), or with some names"
    ) in result.outlines
