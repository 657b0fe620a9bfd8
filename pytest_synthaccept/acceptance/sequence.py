"""The decision sequence: one number u in [0, 1) per (seed, request key, verification step).

The accepted length of a step is L = #{i : u < p_i}. Everything is unsigned 32-bit
arithmetic, so a GPU kernel, Triton's interpreter and this file agree bit for bit, and
p = 1 always accepts while p = 0 never does.

*exact* walks a lattice: successive steps move by 2^32 / golden ratio and successive keys by
2^32 / plastic number, so the counts of one request, and of a batch, stay within a few tokens
of the plan. The plain lattice can never repeat itself closely enough to produce, say, the
same count three times in a row, so the steps of every block of eight are visited in an order
drawn from (seed, block): the same eight points, every short history possible.

*random* is a counter-based generator in a domain of its own: independent draws.
"""

from __future__ import annotations

# Of laws and sequence: another number where the same plan decides otherwise than before.
VERSION = 1

MASK32 = 0xFFFF_FFFF
STEP_STRIDE = 2_654_435_769  # 2^32 / golden ratio
KEY_STRIDE = 3_242_174_889  # 2^32 / plastic number
BLOCK_SALT = 0x85EB_CA6B
RANDOM_SALT = 0x51A5_7D2B


def mix32(x: int) -> int:
    """A 32-bit integer hash with full avalanche (Wellons' lowbias32)."""
    x &= MASK32
    x ^= x >> 16
    x = (x * 0x7FEB_352D) & MASK32
    x ^= x >> 15
    x = (x * 0x846C_A68B) & MASK32
    return x ^ (x >> 16)


def permute_step(step: int, seed: int) -> int:
    """The step, moved inside its block of eight; a bijection, the same for every request."""
    bits = mix32(mix32(seed) + (step >> 3) * STEP_STRIDE + BLOCK_SALT)
    j = step & 7
    for _ in range(3):
        odd, add = (bits & 3) * 2 + 1, (bits >> 2) & 7
        j = (j * odd + add) & 7
        j ^= j >> 1
        bits >>= 5
    return (step & ~7) | j


def exact_u32(seed: int, key: int, step: int) -> int:
    """u * 2^32 of the exact sequence."""
    return (permute_step(step, seed) * STEP_STRIDE + key * KEY_STRIDE + mix32(seed)) & MASK32


def random_u32(seed: int, key: int, step: int) -> int:
    """u * 2^32 of independent draws."""
    return mix32(mix32(mix32(mix32(seed) ^ RANDOM_SALT) + key * KEY_STRIDE) + step * STEP_STRIDE)


U32 = {"exact": exact_u32, "random": random_u32}
