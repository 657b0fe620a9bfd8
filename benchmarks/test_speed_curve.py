"""The sweep on the tiny CPU engine: what it takes, how well it repeats, what its gate catches.

Times are this machine's; work counts and the verdicts of the gate are not.
"""

import time

import pytest

from pytest_synthaccept.bench.bootstrap import median
from pytest_synthaccept.bench.expression import parse
from pytest_synthaccept.bench.gate import entry_of, judge
from pytest_synthaccept.bench.sweep import sweep

RATES = [0.0, 0.25, 0.5, 0.75, 1.0]
ROUNDS, TOKENS = 15, 32
MOST_SECONDS = 90


def work_of(curve):
    return [cell.work for cell in (*curve.cells, curve.baseline)]


def test_five_sweeps(spec_benchmark):
    """In 90 s each; counts identical; the stated interval covers the median of the five."""
    began = time.perf_counter()
    curves = [spec_benchmark.sweep(RATES, tokens=TOKENS, rounds=ROUNDS)]
    seconds = [time.perf_counter() - began]
    for _ in range(4):
        began = time.perf_counter()
        curves.append(sweep(spec_benchmark.engine, RATES, tokens=TOKENS, rounds=ROUNDS))
        seconds.append(time.perf_counter() - began)
    for curve, took in zip(curves, seconds, strict=True):
        print(f"\n{took:.1f} s\n{curve}")
    middle = median([curve.break_even.value for curve in curves])
    covered = [c.break_even.low <= middle <= c.break_even.high for c in curves]
    spec_benchmark.extra_info.update(
        seconds=seconds, break_even=[curve.break_even for curve in curves], covered=sum(covered)
    )
    assert max(seconds) <= MOST_SECONDS
    assert all(work_of(curve) == work_of(curves[0]) for curve in curves)
    assert None not in work_of(curves[0])
    assert sum(covered) >= 4, [curve.break_even for curve in curves]


def runner_of(engine):
    core = engine.llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def one_forward_more(runner, monkeypatch, step_seconds):
    model, inside = runner.model, []
    forward = model.forward

    def twice(*args, **kwargs):
        if not inside:
            inside.append(True)
            model(*args, **kwargs)
            inside.clear()
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", twice)


def one_draft_more(runner, monkeypatch, step_seconds):
    speculator = runner.speculator
    run_model = speculator._run_model

    def again(*args, **kwargs):
        if int(speculator.current_draft_step) == 1:
            run_model(*args, **kwargs)
        return run_model(*args, **kwargs)

    monkeypatch.setattr(speculator, "_run_model", again)


def slow_verification(runner, monkeypatch, step_seconds):
    """A sleep of a fifth of a step where drafts are accepted or rejected."""
    sampler = type(runner.rejection_sampler)
    verify = sampler.__call__

    def slow(*args, **kwargs):
        time.sleep(0.2 * step_seconds)
        return verify(*args, **kwargs)

    monkeypatch.setattr(sampler, "__call__", slow)


CLOCK = "step-time:10%", "speedup@1:10%", "break-even:0.05"


@pytest.mark.parametrize(
    ("plant", "work", "clock"),
    [
        (one_forward_more, "regressed", None),
        (one_draft_more, "regressed", None),
        (slow_verification, "passed", "regressed"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_planted_slowdowns(spec_benchmark, monkeypatch, plant, work, clock):
    """More work shows in the counts alone; a sleep in the times, and not in the counts."""
    engine = spec_benchmark.engine
    rates = [0.0, 0.5, 1.0]
    healthy = spec_benchmark.sweep(rates, tokens=TOKENS, rounds=ROUNDS)
    again = sweep(engine, rates, tokens=TOKENS, rounds=ROUNDS)
    plant(runner_of(engine), monkeypatch, healthy.step_seconds().value)
    slow = sweep(engine, rates, tokens=TOKENS, rounds=ROUNDS)
    monkeypatch.undo()
    engine.runs.clear()  # the plugin's own checks would judge the planted runs, too
    print(f"\n{healthy}\n{slow}")
    entries = [entry_of(curve, same={}, clock={}) for curve in (healthy, again, slow)]

    def verdict(now, expression):
        (only,) = judge({"sweep": now}, {"sweep": entries[0]}, parse(expression))
        print(only.outcome, only.why)
        return only.outcome

    assert verdict(entries[1], "work") == "passed"
    assert verdict(entries[2], "work") == work
    clocks = [verdict(entries[2], expression) for expression in CLOCK]
    if clock is not None:
        assert clock in clocks, clocks
        assert "passed" not in clocks[:2]
        for expression in CLOCK:
            assert verdict(entries[1], expression) != "regressed"
