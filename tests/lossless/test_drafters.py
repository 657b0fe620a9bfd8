"""Every drafting method keeps to the committed tokens, at every acceptance."""

import pytest

from pytest_synthaccept.checks import CHECKS
from pytest_synthaccept.engine.config import Drafter

METHODS = [
    Drafter("eagle3"),
    Drafter("draft_model"),
    Drafter("mtp"),
    Drafter("eagle", num_speculative_tokens=5),
]


@pytest.fixture(params=METHODS, ids=lambda d: f"{d.method}-{d.num_speculative_tokens}")
def spec_drafter(request):
    return request.param


def test_all_checks_pass(spec_engine, spec_drafter, prompts):
    k = spec_drafter.num_speculative_tokens
    outputs = set()
    plans = [{"script": script} for script in ([k], [0], [k, 0], [1, 0, k])]
    for plan in [*plans, {"rate": 0.5, "seed": 3}]:
        spec_engine.set_acceptance(**plan, lossless=True)
        run = spec_engine.generate(prompts[:3], max_tokens=20)
        run.check()
        assert run.checked == dict.fromkeys(CHECKS, "passed"), plan
        outputs.add(str(run.outputs))
    assert len(outputs) == 1


def test_drafts_are_varied(spec_engine, prompts):
    spec_engine.set_acceptance(0.0, lossless=True)
    run = spec_engine.generate(prompts[:1], max_tokens=24)
    assert len({step.proposed for step in run.steps}) > 0.8 * len(run.steps)
