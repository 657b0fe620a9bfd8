"""Above temperature 0 the target's token is a draw from softmax(row)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import pytest
import torch
from sampler_cases import DEVICE, Pair, Row, make_batch, plan

from pytest_synthaccept.sampler.reference import choose_token, token_u32

VOCAB = 40


def softmax(logits: Sequence[float], without: int = -1) -> list[float]:
    weights = [0.0 if n == without else math.exp(x) for n, x in enumerate(logits)]
    return [w / sum(weights) for w in weights]


def chi_square(tokens: Iterable[int], probabilities: Sequence[float]) -> tuple[float, float]:
    """(statistic, threshold): threshold = df + 10 sqrt(2 df); cells under 5 expected are merged."""
    counts = Counter(tokens)
    total = sum(counts.values())
    cells: list[tuple[float, int]] = []
    rare = (0.0, 0)
    for token, p in enumerate(probabilities):
        if p * total >= 5:
            cells.append((p * total, counts[token]))
        else:
            rare = (rare[0] + p * total, rare[1] + counts[token])
    impossible = sum(n for t, n in counts.items() if probabilities[t] == 0)
    assert impossible == 0, f"{impossible} draws of probability 0"
    if rare[0] > 0:
        cells.append(rare)
    df = len(cells) - 1
    return sum((n - e) ** 2 / e for e, n in cells), df + 10 * math.sqrt(2 * df)


def kernel_draws(draws: int, logits: torch.Tensor, drafts: list[int]) -> list[int]:
    """First tokens of `draws` requests in one call, nothing accepted; equal to the reference's."""
    pair = Pair(1, num_slots=draws).begin(plan(0.0))
    rows = [Row(slot, drafts) for slot in range(draws)]
    for row in rows:
        pair.open(row.slot, key=row.slot)
    batch = make_batch(rows, VOCAB, 1, temperature=1.0, num_slots=draws)
    batch.logits[:] = logits
    sampled, _ = pair.sample(batch)
    return sampled[:, 0].tolist()


ROW = (torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 1.5).tolist()
WRONG: dict[str, Callable[[list[float]], list[float]]] = {
    "temperature applied twice": lambda row: [x / 0.5 for x in row],
    "temperature forgotten": lambda row: [x * 0.5 for x in row],
    "one token to the side": lambda row: row[1:] + row[:1],
    "last block lost": lambda row: row[:32] + [-20.0] * 8,
}


def test_kernel_draws_follow_softmax_and_spare_the_rejected_draft(small_blocks):
    """Over three blocks, with and without a rejected draft, which is the likeliest token.

    Few draws in the interpreter: `Pair` compares each with the reference, whose distribution
    is tested with 40,000 below.
    """
    best = ROW.index(max(ROW))
    for drafts, without in (([], -1), ([best], best)):
        tokens = kernel_draws(2000 if DEVICE == "cuda" else 100, torch.tensor(ROW), drafts)
        statistic, threshold = chi_square(tokens, softmax(ROW, without))
        assert statistic < threshold


def reference_draws(row: list[float], draws: int = 40_000) -> list[int]:
    """Over keys, samples and positions together."""
    us = (token_u32(7, n % 50, n // 50 % 4, n // 200) for n in range(draws))
    tokens = [choose_token(row, 1.0, -1, u) for u in us]
    assert None not in tokens
    return [token for token in tokens if token is not None]


def test_reference_draws_follow_softmax():
    statistic, threshold = chi_square(reference_draws(ROW), softmax(ROW))
    assert statistic < threshold


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_distribution_is_seen(name):
    """Each takes the statistic to at least 3 times the threshold, with 4,000 draws."""
    statistic, threshold = chi_square(reference_draws(WRONG[name](ROW), 4000), softmax(ROW))
    assert statistic > 3 * threshold


@pytest.mark.parametrize("axis", range(4))
def test_the_generator_is_uniform_along_each_of_its_keys(axis):
    """Seed, key, sample and index in turn: 64 bins, and pairs of neighbours in 8 x 8."""
    us = [token_u32(*(n if at == axis else 3 for at in range(4))) for n in range(6400)]
    flat, threshold = chi_square([u >> 26 for u in us], [1 / 64] * 64)
    assert flat < threshold
    pairs = [(u >> 29) * 8 + (v >> 29) for u, v in pairwise(us)]
    assert chi_square(pairs, [1 / 64] * 64)[0] < threshold


def test_the_generator_is_apart_from_the_decisions():
    """u of the token and u of the decision in 8 x 8 cells, for both decision sequences."""
    from pytest_synthaccept.acceptance.sequence import U32

    for decision in U32.values():
        cells = [
            (decision(1, key, n) >> 29) * 8 + (token_u32(1, key, 0, n) >> 29)
            for key in range(8)
            for n in range(800)
        ]
        statistic, threshold = chi_square(cells, [1 / 64] * 64)
        assert statistic < threshold


@pytest.mark.parametrize("u", [0, 1, 2**31, 2**32 - 1])
def test_the_ends_of_the_cdf_stay_inside(u, small_blocks, monkeypatch):
    """u = 0 gives the first possible token, the last u the last: never one of probability 0.

    The kernel's u is set through the token seed's inverse: see `key_for`.
    """
    nothing = [-math.inf] * 17  # a block and more
    logits = [*nothing, 0.0, -math.inf, *[0.0] * 30, -math.inf, 0.0, *nothing]
    tokens = [token for token, x in enumerate(logits) if x == 0]
    key = key_for(u)
    pair = Pair(1, num_slots=1).begin(plan(0.0, seed=0))
    pair.open(0, key=key)
    batch = make_batch([Row(0, [])], len(logits), 1, temperature=1.0, num_slots=1)
    batch.logits[:] = torch.tensor(logits)
    sampled, _ = pair.sample(batch)
    assert sampled[0, 0].item() == tokens[u * len(tokens) >> 32]


def unmix32(x: int) -> int:
    """The inverse of mix32."""

    def unshift(y: int, by: int) -> int:
        z = y
        for _ in range(32 // by):
            z = y ^ (z >> by)
        return z

    x = unshift(x, 16) * pow(0x846CA68B, -1, 2**32) % 2**32
    x = unshift(x, 15) * pow(0x7FEB352D, -1, 2**32) % 2**32
    return unshift(x, 16)


def key_for(u: int, seed: int = 0, sample: int = 0, index: int = 11) -> int:
    """The request key whose draw at `index` is exactly u."""
    from pytest_synthaccept.acceptance.sequence import KEY_STRIDE, STEP_STRIDE, mix32
    from pytest_synthaccept.sampler.kernels import TOKEN_SALT

    h = (unmix32(u) - index * STEP_STRIDE) % 2**32
    h = (unmix32(h) - sample * KEY_STRIDE) % 2**32
    start = mix32(mix32(seed) ^ TOKEN_SALT)
    key = (unmix32(h) - start) * pow(KEY_STRIDE, -1, 2**32) % 2**32
    assert token_u32(seed, key, sample, index) == u
    return key
