"""Request ids that carry the request key, so that every rank of every process knows it.

vLLM decorates an id on its way to the worker: ``1_<id>-1a2b3c4d`` is the second sample of a
request with n > 1, and the tail is random.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FORMAT = "synthaccept.{run}.{index}.{key}"
_PATTERN = re.compile(
    r"(?:(?P<sample>\d+)_)?synthaccept\.(?P<run>\d+)\.(?P<index>\d+)\.(?P<key>\d+)"
)
_SAMPLE = re.compile(r"(\d+)_")


class RequestId(NamedTuple):
    """Run number, the request's order in it, its key, and which of its n samples."""

    run: int
    order: int
    key: int
    sample: int


def format_id(run: int, index: int, key: int) -> str:
    """The id under which a request is given to vLLM."""
    return _FORMAT.format(run=run, index=index, key=key)


def parse_id(request_id: str) -> RequestId | None:
    """Back from what a worker sees; None for a request that did not come through us."""
    match = _PATTERN.match(request_id)
    if match is None:
        return None
    run, index, key = (int(match[name]) for name in ("run", "index", "key"))
    return RequestId(run, index, key, int(match["sample"] or 0))


def sample_of(request_id: str) -> int:
    """Which of a request's n samples a foreign id belongs to."""
    match = _SAMPLE.match(request_id)
    return int(match[1]) if match else 0


def foreign_id(request_id: str, arrivals: dict[str, int]) -> RequestId:
    """A request given to vLLM directly: keyed by arrival, its samples by their parent.

    ``arrivals`` remembers the parents. Its order is negative: a run's own requests count from 0.
    """
    sample = sample_of(request_id)
    parent = request_id.removeprefix(f"{sample}_") if "_" in request_id else request_id
    arrival = arrivals.setdefault(parent, len(arrivals))
    return RequestId(run=-1, order=-1 - arrival, key=arrival, sample=sample)
