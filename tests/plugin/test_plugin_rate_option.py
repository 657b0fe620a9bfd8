"""``--acceptance-rate``: which tests it parametrises, and how their ids read."""

from __future__ import annotations

import pytest

MODULE = """
import pytest

def test_plain(): ...

def test_engine(spec_engine):
    print(f"<{spec_engine.plan.requested}>")

def test_factory(spec_engine_factory):
    print(f"<{spec_engine_factory().plan.requested}>")

@pytest.mark.acceptance_rate(0.5)
def test_marked(spec_engine):
    print(f"<{spec_engine.plan.requested}>")

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.acceptance_rate(0.25))])
def test_mixed(spec_engine, x):
    print(f"<{spec_engine.plan.requested}>")
"""


def ids(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_several_rates(stub):
    stub.makepyfile(test_it=MODULE)
    result = stub.runpytest("--acceptance-rate=0.3,1.0", "--collect-only", "-q")
    assert ids(result) == [
        "test_plain",
        "test_engine[rate=0.3]",
        "test_engine[rate=1]",
        "test_factory[rate=0.3]",
        "test_factory[rate=1]",
        "test_marked",
        "test_mixed[2]",
        "test_mixed[rate=0.3-1]",
        "test_mixed[rate=1-1]",
    ]
    # None counts as deselected.
    assert any(line.startswith("9 tests collected in") for line in result.outlines)


def test_one_rate_and_the_plans(stub):
    stub.makepyfile(test_it=MODULE)
    result = stub.runpytest("--acceptance-rate=0.3", "-s", "-q", "--synthaccept-checks=none")
    result.assert_outcomes(passed=6)
    asked = [part.split(">")[0] for part in str(result.stdout).split("<")[1:]]
    assert [text.split(" ")[0] for text in asked] == [
        "rate=0.3",
        "rate=0.3",
        "rate=0.5",
        "rate=0.25",
        "rate=0.3",
    ]


def test_from_the_ini_file(stub):
    stub.makepyfile(test_it=MODULE)
    stub.makeini("[pytest]\nacceptance_rate = 0.3\n")
    result = stub.runpytest("--collect-only", "-q", "-k", "test_engine")
    assert ids(result) == ["test_engine[rate=0.3]"]
    result = stub.runpytest("--acceptance-rate=0.6", "--collect-only", "-q", "-k", "test_engine")
    assert ids(result) == ["test_engine[rate=0.6]"]


def test_without_it_nothing_is_parametrised(stub):
    stub.makepyfile(test_it=MODULE)
    assert ids(stub.runpytest("--collect-only", "-q")) == [
        "test_plain",
        "test_engine",
        "test_factory",
        "test_marked",
        "test_mixed[1]",
        "test_mixed[2]",
    ]


def test_place_of_the_rate_in_messages(stub):
    stub.makepyfile(
        test_it="""
        def test_it(spec_engine):
            assert spec_engine.where == "test_it.py::test_it[rate=0.3] --acceptance-rate"
        """
    )
    stub.runpytest("--acceptance-rate=0.3").assert_outcomes(passed=1)
