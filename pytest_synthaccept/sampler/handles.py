"""Launching a kernel whose arguments are of the same kinds every time, in a third of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from triton.runtime import driver

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, int],
    tensors: Sequence[torch.Tensor],
    scalars: Sequence[int],
    constants: tuple[Any, ...],
    special: tuple[Any, ...] = (),
    **options: Any,
) -> None:
    """``kernel[grid](*tensors, *scalars, *constants, **options)``, on the current stream.

    Triton's own launch looks at every argument anew, which takes longer than a small kernel
    does. So after the first launch with the same constants and data types the compiled kernel
    is launched by its handle. ``special`` has to say all else that Triton compiles it for: what
    alignment and divisibility it may rely on, where the kernel does not forbid it to look.
    """
    device = tensors[0].device
    key = (kernel, device, constants, special, *[tensor.dtype for tensor in tensors])
    compiled = _compiled.get(key)
    if compiled is None:  # always so in Triton's interpreter, which has nothing to compile
        _compiled[key] = kernel[grid](*tensors, *scalars, *constants, **options)
        return
    stream = driver.active.get_current_stream(device.index)
    handle = (compiled.function, compiled.packed_metadata, None, None, None)
    addresses = [tensor.data_ptr() for tensor in tensors]
    compiled.run(*grid, 1, stream, *handle, *addresses, *scalars, *constants)
