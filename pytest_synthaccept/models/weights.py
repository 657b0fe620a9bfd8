"""Weights from a seed: the same bits on every machine and with every NumPy release.

NumPy promises the raw stream of a bit generator for ever, but not what ``standard_normal``
makes of it. So a normal deviate here is a sum of eight 16-bit integers: exact arithmetic but
for the rounding of the result, which IEEE 754 fixes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Spread = float | Literal["sum"] | None
"""A standard deviation; None for a norm's weight, which is all ones; "sum" for the projection
that adds up its inputs, cut into pieces as long as its output: exact, in whatever order a kernel
goes about it."""
Layout = Mapping[str, tuple[tuple[int, ...], Spread]]
"""Tensor name -> (shape, spread)."""

_SUMMANDS = 8  # of uniform integers: kurtosis 2.85, tails to 4.9 standard deviations
_LEVELS = 1 << 16


def tensor(seed: int, name: str, shape: tuple[int, ...], spread: Spread) -> npt.NDArray[np.float32]:
    """One tensor, float32, of ``shape``: mean 0 and the given standard deviation, or fixed.

    Each name has a stream of its own, so that adding a tensor to a layout changes no other.
    """
    import numpy as np

    if spread is None:
        return np.ones(shape, np.float32)
    if spread == "sum":
        out, fan_in = shape
        return np.tile(np.eye(out, dtype=np.float32), fan_in // out)
    size = int(np.prod(shape))
    stream = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
    raw = stream.random_raw(size * _SUMMANDS * 2 // 8).astype("<u8").view("<u2")
    sums = raw.reshape(size, _SUMMANDS).sum(axis=1, dtype=np.int64)
    centred = 2 * sums - _SUMMANDS * (_LEVELS - 1)  # an integer, twice the distance to the mean
    scale = spread / math.sqrt(_SUMMANDS * (_LEVELS**2 - 1) / 3)
    values: npt.NDArray[np.float32] = (centred * scale).astype(np.float32)
    return values.reshape(shape)


def safetensors(seed: int, layout: Layout, stream: str = "") -> bytes:
    """A safetensors file in bfloat16, which engines in float32 and bfloat16 both hold exactly.

    With another ``stream`` the same names get other weights.
    """
    import torch
    from safetensors.torch import save

    tensors = {
        name: torch.from_numpy(tensor(seed, stream + name, shape, spread)).to(torch.bfloat16)
        for name, (shape, spread) in layout.items()
    }
    content: bytes = save(tensors, metadata={"format": "pt"})
    return content
