"""The synthetic rejection sampler: vLLM's `rejection_sample` under an acceptance plan."""

from pytest_synthaccept.sampler.faithful import Verdict, note_tokens, override
from pytest_synthaccept.sampler.launch import rejection_sample
from pytest_synthaccept.sampler.oracle import Oracle
from pytest_synthaccept.sampler.state import Plan, SamplerState

__all__ = [
    "Oracle",
    "Plan",
    "SamplerState",
    "Verdict",
    "note_tokens",
    "override",
    "rejection_sample",
]
