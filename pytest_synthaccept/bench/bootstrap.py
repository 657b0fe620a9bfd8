"""Estimates with an interval, from rounds that were measured interleaved. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

LEVEL = 0.95
SAMPLES = 1000


class Interval(NamedTuple):
    """An estimate and its bootstrap interval at ``LEVEL``; the ends may be infinite."""

    value: float
    low: float
    high: float


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the middle two; infinities are values like others."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 or ordered[middle - 1] == ordered[middle]:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def undisturbed(seconds: Sequence[float]) -> float:
    """The lower decile of the times of equal work: what it takes where nothing else runs.

    Other work on the machine only ever adds to a time, to some rounds much and to others
    nothing: on a busy machine medians wander by a factor, and this does not.
    """
    ordered = sorted(seconds)
    place = 0.1 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def bootstrap(
    rounds: int,
    statistic: Callable[[Sequence[int]], float],
    *,
    seed: int = 0,
    samples: int = SAMPLES,
) -> Interval:
    """The ``statistic`` of a list of round numbers, and its percentile interval.

    Whole rounds are drawn, and in runs of neighbours, as a machine is slow for longer than one.
    """
    draw = random.Random(seed)
    block = max(1, round(rounds ** (1 / 3)))
    found = sorted(statistic(_resample(draw, rounds, block)) for _ in range(samples))
    tail = (1 - LEVEL) / 2
    low, high = found[math.floor(tail * samples)], found[math.ceil((1 - tail) * samples) - 1]
    value = statistic(range(rounds))
    return Interval(value, min(low, value), max(high, value))


def _resample(draw: random.Random, rounds: int, block: int) -> list[int]:
    """As many rounds as there are, by blocks of neighbours on a ring."""
    out: list[int] = []
    while len(out) < rounds:
        start = draw.randrange(rounds)
        out += [(start + i) % rounds for i in range(block)]
    return out[:rounds]


def non_decreasing(values: Sequence[float]) -> list[float]:
    """The closest non-decreasing values (least squares, by pooling adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean, how many
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean = (before * many + mean * count) / (many + count)
            count += many
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def crossing(xs: Sequence[float], ys: Sequence[float], level: float) -> float:
    """The smallest x at which ``ys``, non-decreasing over ascending ``xs``, reach ``level``.

    Linear in between; -inf where they do from the first on, inf where they never do.
    """
    if ys[0] >= level:
        return -math.inf
    for i in range(1, len(xs)):
        if ys[i] >= level:
            share = (level - ys[i - 1]) / (ys[i] - ys[i - 1])
            return xs[i - 1] + share * (xs[i] - xs[i - 1])
    return math.inf


def at(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """y at x, linear between the measured ascending ``xs``; ValueError outside of them."""
    if not xs[0] <= x <= xs[-1]:
        raise ValueError(f"{x} is outside {xs[0]}..{xs[-1]}")
    for i in range(1, len(xs)):
        if x <= xs[i]:
            share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
            return ys[i - 1] + share * (ys[i] - ys[i - 1])
    return ys[0]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Least squares of y = slope * x; nan where all x are 0."""
    square = math.fsum(x * x for x in xs)
    return math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / square if square else math.nan
