"""Curves from known costs: seconds = steps * (verification + K * draft), with noise."""

from __future__ import annotations

import random

from pytest_synthaccept.bench.curve import Cell, Curve
from pytest_synthaccept.run import Work

K = 3
TOKENS = 120
RATES = (0.0, 0.25, 0.5, 0.75, 1.0)


def make_curve(
    *,
    rates=RATES,
    base=10e-3,
    verification=14e-3,
    draft=3e-3,
    rounds=11,
    noise=0.0,
    common=0.0,
    seed=0,
    **more,
):
    """``noise``: relative, of each cell by itself; ``common``: of a whole round."""
    draw = random.Random(seed)
    slow = [1 + abs(draw.gauss(0, common)) for _ in range(rounds)]

    def times(seconds):
        return tuple(seconds * slow[i] * (1 + draw.gauss(0, noise)) for i in range(rounds))

    cells = []
    for rate in rates:
        length = 1 + K * rate
        steps = round(TOKENS / length)
        cells.append(
            Cell(
                seconds=times(steps * (verification + K * draft)),
                draft_seconds=tuple([steps * K * draft] * rounds),
                work=Work(steps, steps, K * steps, 0),
                steps=steps,
                rate=rate,
                realised=rate,
                length=length,
            )
        )
    baseline = Cell(seconds=times(TOKENS * base), work=Work(TOKENS, TOKENS, 0, 0), steps=TOKENS)
    return Curve(tuple(cells), baseline, TOKENS, K, **more)
