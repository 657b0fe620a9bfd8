"""Poison: KV cache slots that nobody has written hold large values, so that a read of one shows.

Two kinds of slots are filled, in the target's cache and the drafter's: those of a newly
allocated block before its first use, and after each step those past the computed tokens, where
rejected drafts were. An engine that reads neither runs as before; one that does says other
tokens, and the ``outputs`` and ``drafter`` checks name the place. The values are finite: a slot
that attention masks out is still multiplied, by zero.

Nothing here waits for the device. The slots are written by the attention back end itself, which
alone knows how its cache is laid out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pytest_synthaccept.engine import seam
from pytest_synthaccept.sampler.state import pinned

if TYPE_CHECKING:
    from collections.abc import Sequence

NULL_BLOCK = 0  # stands where a request has no block


class Poison:
    """Fills the slots of one worker's KV caches; ``value`` 0 leaves them alone."""

    def __init__(self, worker: Any, num_speculative_tokens: int) -> None:
        self._worker = worker
        self._layers = seam.kv_layers(worker)
        self._past = torch.arange(num_speculative_tokens, device=worker.device)
        self.value = 0.0

    def new_blocks(self, blocks: Sequence[Sequence[int]], *, computed: int) -> None:
        """Fill blocks that a request has just got, before anything is written there.

        Args:
            blocks: ids per KV cache group, in the order of the positions.
            computed: tokens that the first of them hold already: prefix-cache hits.
        """
        for group, ids in enumerate(blocks):
            size = seam.kv_block_size(self._worker, group)
            fresh = [block for block in ids[-(-computed // size) :] if block != NULL_BLOCK]
            if fresh:
                first = torch.tensor(fresh, dtype=torch.int64) * size
                slots = (first[:, None] + torch.arange(size)).flatten()
                self._fill(group, self._to_device(slots))

    def past_the_end(self, idx_mapping: torch.Tensor, slots: Any) -> None:
        """Fill what lies past the computed tokens of the rows of a finished step.

        Args:
            idx_mapping: [num_reqs] int, request slot of each row, on the device.
            slots: the same as a NumPy array.
        """
        computed = seam.num_computed_tokens(self._worker)[idx_mapping.long()]
        position = computed.long()[:, None] + self._past
        for group in {group for _, group in self._layers}:
            size = seam.kv_block_size(self._worker, group)
            table = seam.block_table(self._worker, group)[idx_mapping.long()]
            # Past a request's blocks its table has what an earlier request left there.
            held = self._to_device(seam.num_blocks(self._worker, group, slots)) * size
            block = table.long().gather(1, (position // size).clamp(max=table.shape[1] - 1))
            slot = torch.where(position < held[:, None], block * size + position % size, -1)
            self._fill(group, slot.flatten())

    def _fill(self, group: int, slots: torch.Tensor) -> None:
        """``slots`` [n] int64; negative ones are left out."""
        for layer, of_group in self._layers:
            if of_group == group:
                seam.fill_kv_slots(layer, slots, self.value)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        device = self._worker.device
        return pinned(tensor, device).to(device, non_blocking=True)
