import pytest

PROMPTS = [
    [1, 5, 7, 9],
    [20, 21, 22],
    [300, 7, 7, 301, 9],
    list(range(60, 100)),  # longer than a block of 32
    [11] * 31,
]
# Every draft accepted, none, some, and none and all by turns.
PLANS = {
    "full": {"rate": 1.0},
    "zero": {"rate": 0.0},
    "partial": {"rates": [1.0, 0.0, 0.0]},
    "mixed": {"rate": 0.5, "seed": 3},
}


@pytest.fixture(scope="session")
def prompts():
    return [list(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="session")
def plans():
    return PLANS
