"""The synthetic rejection sampler: vLLM's `rejection_sample` under an acceptance plan."""

from pytest_synthaccept.sampler.kernels import DRAFTLESS, NO_ALTERNATIVE, PADDED, VERIFICATION
from pytest_synthaccept.sampler.launch import rejection_sample
from pytest_synthaccept.sampler.state import LEDGER_COLUMNS, Plan, SamplerState

__all__ = [
    "DRAFTLESS",
    "LEDGER_COLUMNS",
    "NO_ALTERNATIVE",
    "PADDED",
    "VERIFICATION",
    "Plan",
    "SamplerState",
    "rejection_sample",
]
