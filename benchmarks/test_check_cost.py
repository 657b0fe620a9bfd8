"""What the automatic checks cost beside the run that they judge: one process, ratios only."""

import time

import pytest

PROMPTS = [[1, 5, 7, 9], [20, 21, 22], list(range(30, 62)), [9] * 7]
MOST = 0.10  # of the run's time


@pytest.mark.acceptance_rate(0.5, lossless=True)
def test_checks_beside_the_run(spec_engine, benchmark):
    spec_engine.generate(PROMPTS, max_tokens=64).check()  # truth and reference are known now
    seconds = {"run": 0.0, "checks": 0.0}

    def one():
        began = time.perf_counter()
        run = spec_engine.generate(PROMPTS, max_tokens=64)
        seconds["run"] += time.perf_counter() - began
        began = time.perf_counter()
        run.check()
        seconds["checks"] += time.perf_counter() - began
        assert len(run.checked) == 6

    benchmark.pedantic(one, rounds=5)
    share = seconds["checks"] / seconds["run"]
    benchmark.extra_info["share"] = share
    assert share <= MOST
