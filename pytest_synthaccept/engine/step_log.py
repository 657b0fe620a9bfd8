"""What a worker notes of an engine step: as it comes, and read only when the run has ended.

A step of a small model takes a millisecond, so nothing is looped over while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class NotedStep(NamedTuple):
    """One engine step; arrays are of the batch's rows, [num_reqs]."""

    req_ids: list[str]
    num_scheduled_tokens: Any
    num_drafts: Any  # None where the batch has no drafts
    num_computed_tokens: Any
    prefill_len: Any
    allocated: tuple[Any, Any, Any]  # new requests; cached requests' ids and new blocks
    preempted: list[int]  # lanes
    finished: list[int]
    forwards: dict[str, int]

    def records(self, lane_of: Mapping[str, int]) -> dict[str, Any]:
        """As builtins. Requests that are older than the run have no lane, and no row."""
        new, cached_ids, cached_blocks = self.allocated
        blocks = {request.req_id: _count(request.block_ids) for request in new}
        blocks |= zip(cached_ids, map(_count, cached_blocks), strict=True)
        drafts = [0] * len(self.req_ids) if self.num_drafts is None else self.num_drafts.tolist()
        columns = zip(
            self.req_ids,
            self.num_scheduled_tokens.tolist(),
            drafts,
            self.num_computed_tokens.tolist(),
            self.prefill_len.tolist(),
            strict=False,  # arrays may be padded
        )
        rows = [
            [lane_of[request_id], i, *numbers, blocks.get(request_id, 0)]
            for i, (request_id, *numbers) in enumerate(columns)
            if request_id in lane_of
        ]
        return {
            "rows": rows,
            "preempted": self.preempted,
            "finished": self.finished,
            "forwards": self.forwards,
        }


def _count(groups: Any) -> int:
    """KV blocks over all KV cache groups; None where nothing was allocated."""
    return sum(len(blocks) for blocks in groups) if groups else 0
