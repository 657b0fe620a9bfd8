"""What a live engine saves: start, change of rate, and eleven rates three ways.

``nox -s benchmarks`` prints the tables. Absolute times are this machine's; the ratios are taken
in one run and are asserted.
"""

import subprocess
import sys
import time

import pytest

from pytest_synthaccept import SpecEngine

RATES = [i / 10 for i in range(11)]
PROMPTS = [[1, 5, 7, 9], [20, 21, 22], [300, 7, 7], [42]]
TOKENS = 16

LAW = "constant"  # the geometric law would warn at the high rates


def short_test(engine, rate):
    engine.set_acceptance(rate, law=LAW)
    engine.generate(PROMPTS, max_tokens=TOKENS).check()


@pytest.fixture(scope="module", autouse=True)
def imports():
    """An engine start is not charged with the imports, which happen once a process."""
    with SpecEngine():
        pass


def test_engine_start(benchmark):
    """Start in this process, imports done: at most 8 s."""
    engines = []
    benchmark.pedantic(
        lambda: engines.append(SpecEngine()), teardown=lambda: engines.pop().close(), rounds=3
    )
    assert benchmark.stats["max"] <= 8


def test_change_of_rate(benchmark):
    """One RPC to a live engine: at most 50 ms."""
    rates = iter(i / 1000 for i in range(10**6))
    with SpecEngine() as engine:
        benchmark(lambda: engine.set_acceptance(next(rates) % 1, law=LAW))
    assert benchmark.stats["max"] <= 0.05


def test_eleven_rates_on_one_engine_or_on_eleven(benchmark):
    """One pooled engine against eleven in this process >= 3x, against eleven processes >= 5x."""
    seconds = {}

    def pooled():
        with SpecEngine() as engine:
            for rate in RATES:
                short_test(engine, rate)

    def an_engine_each():
        for rate in RATES:
            with SpecEngine() as engine:
                short_test(engine, rate)

    def a_process_each():
        for rate in RATES:
            subprocess.run([sys.executable, __file__, str(rate)], check=True, capture_output=True)

    def timed(way):
        began = time.perf_counter()
        way()
        seconds[way.__name__] = time.perf_counter() - began

    timed(an_engine_each)
    timed(a_process_each)
    benchmark.pedantic(timed, args=(pooled,), rounds=1)
    engines = seconds["an_engine_each"] / seconds["pooled"]
    processes = seconds["a_process_each"] / seconds["pooled"]
    benchmark.extra_info.update(seconds, engines_ratio=engines, processes_ratio=processes)
    print(f"\n{seconds}\nengines {engines:.2f}x, processes {processes:.2f}x")
    assert engines >= 3
    assert processes >= 5


if __name__ == "__main__":
    with SpecEngine() as engine:
        short_test(engine, float(sys.argv[1]))
