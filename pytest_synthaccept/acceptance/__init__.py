"""Which drafts are accepted: laws, the decision sequence, the plan and a test's request for it.

Pure: it imports no torch, triton, vllm or numpy.
"""

from pytest_synthaccept.acceptance.plan import AcceptancePlan, SynthacceptWarning
from pytest_synthaccept.acceptance.request import AcceptanceRequest

__all__ = ["AcceptancePlan", "AcceptanceRequest", "SynthacceptWarning"]
