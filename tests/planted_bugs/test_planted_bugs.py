"""Bugs planted in the real engine, small and reversible: each is caught by a named check.

A planted bug lives in vLLM's own code, never in ours; ``monkeypatch`` takes it out again.
"""

import pytest

pytestmark = pytest.mark.acceptance_rate(0.5)

PROMPTS = [[1, 5, 7, 9], [20, 21, 22]]


@pytest.fixture
def caught(spec_engine):
    """Run under the planted bug; return the message of the check that fails."""

    def run_and_check(check, max_tokens=24):
        run = spec_engine.generate(PROMPTS, max_tokens=max_tokens)
        with pytest.raises(AssertionError) as failure:
            run.check(check)
        spec_engine.runs.clear()  # judged here; the automatic checks would fail this test
        return str(failure.value)

    return run_and_check


@pytest.fixture
def core(spec_engine):
    if spec_engine.info["ranks"] != 1:
        pytest.fail("planted bugs need the engine core in this process")
    return spec_engine.llm.llm_engine.engine_core.engine_core


@pytest.fixture
def model_runner(core):
    return core.model_executor.driver_worker.worker.model_runner


def test_the_unmodified_engine_passes(spec_engine):
    run = spec_engine.generate(PROMPTS, max_tokens=24)
    run.check()
    assert run.checked == {"acceptance": "passed", "accounting": "passed"}


def test_drafts_never_reach_the_scheduler(monkeypatch, core, caught):
    """The speculation is silently off: every request decodes one token a step."""
    schedule = core.scheduler.schedule

    def without_drafts(*args, **kwargs):
        for request in core.scheduler.running:
            request.spec_token_ids = []
        return schedule(*args, **kwargs)

    monkeypatch.setattr(core.scheduler, "schedule", without_drafts)
    message = caught("accounting")
    assert message.startswith("accounting: no draft token was verified in ")


def test_the_scheduler_counts_an_acceptance_too_few(monkeypatch, core, caught):
    """Metrics that disagree with what was sampled: vLLM counts bonus tokens as drafts, or less."""
    make_stats = core.scheduler.make_spec_decoding_stats

    def one_less(*args, num_accepted_tokens, **kwargs):
        return make_stats(*args, num_accepted_tokens=max(0, num_accepted_tokens - 1), **kwargs)

    monkeypatch.setattr(core.scheduler, "make_spec_decoding_stats", one_less)
    message = caught("accounting")
    assert message.startswith("accounting: accepted tokens: the ledger counts ")


def test_a_request_ends_one_token_early(monkeypatch, caught):
    """The length limit is compared with the count before the last accepted run was appended."""
    from vllm.v1.core.sched import scheduler

    check_stop = scheduler.check_stop

    def early(request, *args, **kwargs):
        request.max_tokens -= 1
        try:
            return check_stop(request, *args, **kwargs)
        finally:
            request.max_tokens += 1

    monkeypatch.setattr(scheduler, "check_stop", early)
    message = caught("accounting")
    assert message.startswith("accounting: request 0: 23 committed tokens, expected 24 = ")


def test_rows_and_requests_are_misaligned(monkeypatch, model_runner, caught):
    """The verdict of one request is booked on another."""
    sample = model_runner.sample

    def swapped(hidden_states, input_batch, grammar_output):
        if input_batch.num_draft_tokens and input_batch.num_reqs == 2:
            input_batch.idx_mapping = input_batch.idx_mapping.flip(0)
        return sample(hidden_states, input_batch, grammar_output)

    monkeypatch.setattr(model_runner, "sample", swapped)
    message = caught("accounting")
    assert message.startswith("accounting: request ")
