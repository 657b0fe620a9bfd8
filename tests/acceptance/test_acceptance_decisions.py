"""The committed table of decisions.

Tests elsewhere rely on "equal seed, key and step = equal decision": baselines, recorded bug
reports, comparisons between machines. Changing the sequence is therefore a breaking change. If
this file fails, mend the sequence; do not write the table anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_synthaccept.acceptance import AcceptancePlan
from pytest_synthaccept.acceptance.sequence import (
    KEY_STRIDE,
    MASK32,
    STEP_STRIDE,
    U32,
    mix32,
    permute_step,
    random_u32,
)

TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("decisions.json").read_text())


def changed() -> list[list[Any]]:
    """The table's rows [sampling, seed, key, step, u32, accepted] that are decided otherwise."""
    rows = []
    for sampling, seed, key, step, u32, accepted in TABLE["rows"]:
        plan = AcceptancePlan(TABLE["rates"], sampling, seed)
        if (U32[sampling](seed, key, step), plan.decide(key, step)) != (u32, accepted):
            rows.append([sampling, seed, key, step, u32, accepted])
    return rows


def test_decisions_are_those_of_the_table() -> None:
    assert not changed(), "changing the sequence is a breaking change"


def test_the_table_covers_both_samplings_and_every_count() -> None:
    rows = TABLE["rows"]
    assert len(rows) == len({tuple(row[:4]) for row in rows})
    for sampling in U32:
        accepted = {row[5] for row in rows if row[0] == sampling}
        assert accepted == set(range(len(TABLE["rates"]) + 1))
    assert any(max(row[1:4]) == MASK32 for row in rows)


@pytest.mark.parametrize(
    ("sampling", "other"),
    [
        ("exact", lambda s, k, t: (t * STEP_STRIDE + k * KEY_STRIDE + mix32(s)) & MASK32),
        (
            "exact",
            lambda s, k, t: (permute_step(t, s) * STEP_STRIDE + k * KEY_STRIDE + s) & MASK32,
        ),
        ("exact", random_u32),
        ("random", lambda s, k, t: mix32(mix32(mix32(s) + k * KEY_STRIDE) + t * STEP_STRIDE)),
    ],
    ids=["steps not permuted", "seed not mixed", "independent draws", "no domain of its own"],
)
def test_another_sequence_is_noticed(
    monkeypatch: pytest.MonkeyPatch, sampling: str, other: Any
) -> None:
    monkeypatch.setitem(U32, sampling, other)
    assert changed()


def test_a_flipped_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = U32["exact"]
    monkeypatch.setitem(U32, "exact", lambda s, k, t: exact(s, k, t) ^ 1)
    assert len(changed()) == sum(row[0] == "exact" for row in TABLE["rows"])
