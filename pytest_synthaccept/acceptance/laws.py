"""From one number to K rates and back: pure functions of floats.

K is the number of draft tokens per verification step. The unconditional rate p_i is the
probability that the first i drafts are all accepted, so 1 >= p_1 >= ... >= p_K >= 0; the
conditional rate c_i = p_i / p_(i-1) is that of draft i once the drafts before it are accepted.

    rate   = accepted / drafted = (p_1 + ... + p_K) / K                    0 .. 1
    length = tokens per verification step, bonus included = 1 + K * rate   1 .. K + 1

The functions here trust their arguments (0 <= rate <= 1, k >= 1); the plan checks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import mul

MIN_DECAY = 0.85


def rate_from_length(length: float, k: int) -> float:
    """Mean accepted/drafted of ``length`` tokens per step (1..k+1, bonus included)."""
    return (length - 1) / k


def length_from_rate(rate: float, k: int) -> float:
    """Tokens per verification step, bonus included, of a mean accepted/drafted (0..1)."""
    return 1 + k * rate


def unconditional(conditional: Iterable[float]) -> tuple[float, ...]:
    """p_1..p_K: the running products of the conditional rates c_1..c_K (each 0..1)."""
    return tuple(accumulate(conditional, mul))


def conditional(rates: Sequence[float]) -> tuple[float, ...]:
    """c_1..c_K of the unconditional rates p_1..p_K; 0 after a p of 0."""
    before = (1.0, *rates[:-1])
    return tuple(p / q if q else 0.0 for p, q in zip(rates, before, strict=True))


def geometric(rate: float, k: int) -> tuple[float, ...]:
    """K unconditional rates with c_i = a * g^(i-1) and the given mean (vLLM PR 38045)."""
    return _decaying(*geometric_params(rate, k), k)


def geometric_params(rate: float, k: int) -> tuple[float, float]:
    """The geometric law's (a, g): the rate of draft 1, and the factor from draft to draft.

    The decay g is 0.85 while that can reach ``rate``; above, a is 1 and g rises towards 1.
    """
    if rate >= 1:
        return 1.0, 1.0
    if rate >= _mean(_decaying(1.0, MIN_DECAY, k)):
        return 1.0, _smallest(lambda g: _mean(_decaying(1.0, g, k)) >= rate, MIN_DECAY, 1.0)
    return _smallest(lambda a: _mean(_decaying(a, MIN_DECAY, k)) >= rate, 0.0, 1.0), MIN_DECAY


def constant(rate: float, k: int) -> tuple[float, ...]:
    """K unconditional rates with one conditional rate for all positions: p_i = c^i."""
    if rate >= 1:
        return (1.0,) * k
    c = _smallest(lambda c: _mean(_decaying(c, 1.0, k)) >= rate, 0.0, 1.0)
    return _decaying(c, 1.0, k)


def min_variance(rate: float, k: int) -> tuple[float, ...]:
    """K unconditional rates such that only two adjacent accepted counts ever occur."""
    drafts = rate * k
    sure = int(drafts + 1e-12)  # a float's rounding below 2 is 2
    return ((1.0,) * sure + (max(drafts - sure, 0.0),) + (0.0,) * k)[:k]


LAWS: dict[str, Callable[[float, int], tuple[float, ...]]] = {
    "geometric": geometric,
    "constant": constant,
    "min_variance": min_variance,
}


def first_position_certain_above(law: str, k: int) -> float | None:
    """The rate from which ``law`` never rejects draft 1, so that no step accepts nothing.

    None where that is so at rate 1 alone. Raises KeyError for an unknown law.
    """
    limit = {
        "geometric": _mean(_decaying(1.0, MIN_DECAY, k)),
        "constant": 1.0,
        "min_variance": 1 / k,
    }[law]
    return limit if limit < 1 else None


def _decaying(first: float, decay: float, k: int) -> tuple[float, ...]:
    """p_1..p_K for c_i = first * decay^(i-1); products only, so no p exceeds the one before."""
    return unconditional(accumulate((first, *(decay,) * (k - 1)), mul))


def _mean(rates: Sequence[float]) -> float:
    return math.fsum(rates) / len(rates)


def _smallest(reaches: Callable[[float], bool], low: float, high: float) -> float:
    """Bisect for the smallest float in low..high that reaches the goal; high does."""
    if reaches(low):
        return low
    for _ in range(100):  # a float's own precision, with an end for rates near 0
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high
