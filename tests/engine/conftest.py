import pytest

PROMPTS = [
    [1, 5, 7, 9],
    [20, 21, 22],
    [300, 7, 7, 301, 9],
    [42],
    list(range(60, 100)),  # longer than a block of 32
    [11] * 31,
]


@pytest.fixture(scope="session")
def prompts():
    return [list(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="session")
def decision_table():
    """run -> {(request key, step): (planned, accepted)} of its verification steps."""

    def table(run):
        return {(s.request, s.step): (s.planned, s.accepted) for s in run.steps}

    return table


@pytest.fixture(scope="session")
def assert_same_decisions(decision_table):
    """Two runs decided alike wherever both have a step, and share at least ``least`` steps."""

    def same(one, other, least=100):
        a, b = decision_table(one), decision_table(other)
        common = a.keys() & b.keys()
        assert len(common) >= least
        assert {k: a[k] for k in common} == {k: b[k] for k in common}

    return same
