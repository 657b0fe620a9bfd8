"""Tiny checkpoints for a real engine: written from a seed, kept in the user's cache.

A model of a few hundred thousand parameters is enough to drive every part of the engine that
speculative decoding touches, and needs no download. Nothing heavy is imported until a
checkpoint has to be written.
"""

from __future__ import annotations

from pytest_synthaccept.models.cache import cache_root
from pytest_synthaccept.models.checkpoints import tiny_drafter, tiny_target

__all__ = ["cache_root", "tiny_drafter", "tiny_target"]
