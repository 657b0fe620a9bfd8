"""Bugs planted in the real engine, small and reversible: each is caught by a named check.

A planted bug lives in vLLM's own code, never in ours; ``monkeypatch`` takes it out again.
"""

import re

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


@pytest.fixture
def lossless(spec_engine):
    """A lossless run under the planted bug, its truth taken before: the bug may break that too."""

    def run():
        spec_engine.set_acceptance(0.5, lossless=True)
        made = spec_engine.generate(PROMPTS, max_tokens=24)
        spec_engine.runs.clear()  # judged here; the automatic checks would fail this test
        return made

    run().check("outputs", "drafter")
    return run


def fails(run, check):
    with pytest.raises(AssertionError) as failure:
        run.check(check)
    return str(failure.value)


@pytest.mark.parametrize("lossless", [False, True])
def test_the_unmodified_engine_passes(spec_engine, lossless):
    run = spec_engine.generate(PROMPTS, max_tokens=24, lossless=lossless)
    run.check()
    assert set(run.checked.values()) == {"passed"}
    assert len(run.checked) == (6 if lossless else 4)


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


def test_a_rejected_token_is_counted_as_computed(monkeypatch, model_runner, lossless):
    """The worker's count runs ahead of the truth: positions and KV slots shift by one."""
    postprocess = model_runner.postprocess_sampled

    def one_less(idx_mapping, sampled, num_sampled, num_rejected, *args, **kwargs):
        num_rejected = (num_rejected - 1).clamp(min=0)
        return postprocess(idx_mapping, sampled, num_sampled, num_rejected, *args, **kwargs)

    monkeypatch.setattr(model_runner, "postprocess_sampled", one_less)
    message = fails(lossless(), "outputs")
    assert re.match(
        r"outputs: request \d: output token \d+ is \d+, the target alone says \d+; "
        r"after step \d+ \([0-3] of 3 drafts accepted\), position \d+ "
        r"\(block 0, slot \d+\); the target's logprob margin there is [\d.e-]+",
        message,
    )


def test_the_drafter_sees_the_wrong_hidden_state(monkeypatch, model_runner, lossless):
    """Outputs stay right; the drafts after an accepted run are those of another position."""
    propose = model_runner.speculator.propose

    def shifted(input_batch, metadata, slots, hidden_states, aux, num_sampled, *args, **kwargs):
        moved = hidden_states.roll(1, 0) if input_batch.num_draft_tokens else hidden_states
        return propose(input_batch, metadata, slots, moved, aux, num_sampled, *args, **kwargs)

    monkeypatch.setattr(model_runner.speculator, "propose", shifted)
    run = lossless()
    run.check("outputs")
    assert re.match(
        r"drafter: request \d, step \d+, position \d+, after [0-3] accepted drafts: proposed "
        r"\[\d+, \d+, \d+\], where the same prefix without accepted drafts gets \[",
        fails(run, "drafter"),
    )


def test_the_drafter_forgets_accepted_tokens(monkeypatch, model_runner, lossless):
    """Its sequence length counts one rejected draft too many after a partly accepted step."""
    propose = model_runner.speculator.propose

    def longer(input_batch, metadata, slots, hidden, aux, num_sampled, num_rejected, *args, **kw):
        kept = (num_rejected + (num_sampled > 1).int()).clamp(max=3)
        return propose(input_batch, metadata, slots, hidden, aux, num_sampled, kept, *args, **kw)

    monkeypatch.setattr(model_runner.speculator, "propose", longer)
    run = lossless()
    run.check("outputs")
    assert fails(run, "drafter").startswith("drafter: request ")


def test_a_block_of_the_kv_cache_is_lost(monkeypatch, model_runner, lossless):
    """The first block of the first request is zeroed while it is in use."""
    execute_model = model_runner.execute_model
    steps = iter(range(10**6))

    def zeroing(*args, **kwargs):
        if next(steps) == 4:
            model_runner.kv_caches[0].zero_()
        return execute_model(*args, **kwargs)

    monkeypatch.setattr(model_runner, "execute_model", zeroing)
    assert fails(lossless(), "outputs").startswith("outputs: request ")
