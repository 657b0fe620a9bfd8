"""What goes into ``generate`` and ``run``, and what comes out."""

import math

import pytest

from pytest_synthaccept.errors import EngineError


def test_every_rate_on_one_engine(spec_engine, prompts):
    for rate in (0.0, 0.3, 0.5, 0.8, 1.0):
        spec_engine.set_acceptance(rate)
        run = spec_engine.generate(prompts, max_tokens=40)
        run.check()
        judged = ("acceptance", "accounting", "scheduler", "kv_cache")
        assert run.checked == dict.fromkeys(judged, "passed")
        assert all(len(output) == 40 for output in run.outputs)
        if rate in (0.0, 1.0):
            assert run.acceptance.rate == rate
        else:
            assert run.acceptance.rate == pytest.approx(rate, abs=0.08)


@pytest.mark.acceptance_rate(0.6, sampling="random", seed=3)
def test_random_sampling_is_reproducible_and_checked_exactly(spec_engine, prompts):
    run = spec_engine.generate(prompts, max_tokens=40)
    again = spec_engine.generate(prompts, max_tokens=40)
    assert [s.accepted for s in run.steps] == [s.accepted for s in again.steps]
    assert {s.accepted for s in run.steps} == {0, 1, 2, 3}


@pytest.mark.acceptance_rate(0.0)
def test_a_rejection_is_visible(spec_engine, prompts):
    """The token after a rejected draft is never that draft."""
    run = spec_engine.generate(prompts, max_tokens=30)
    for step in run.steps:
        assert step.token != step.proposed[0]
        assert not step.no_alternative


@pytest.mark.acceptance_rate(1.0)
def test_accepted_drafts_are_committed_as_proposed(spec_engine, prompts):
    run = spec_engine.generate(prompts[:1], max_tokens=33)
    (output,) = run.outputs
    committed = [token for step in run.steps for token in (*step.proposed, step.token)]
    assert output == [output[0], *committed][: len(output)]


@pytest.mark.acceptance_rate(0.5)
def test_positions_count_committed_tokens(spec_engine):
    run = spec_engine.generate([[1, 5, 7, 9]], max_tokens=30)
    position = 4 + 1  # the prompt, and the token that its prefill yields
    for step in run.steps:
        assert step.position == position
        position += step.accepted + 1


@pytest.mark.acceptance_rate(0.5)
def test_per_prompt_limits_and_an_explicit_limit_wins(spec_engine, prompts):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=99)
    limits = [1, 2, 3, 7, 20, 33]
    run = spec_engine.generate(prompts, max_tokens=limits, sampling_params=params)
    assert [len(output) for output in run.outputs] == limits
    assert params.max_tokens == 99


@pytest.mark.acceptance_rate(0.7)
def test_sampling_parameters_of_every_kind(spec_engine, prompts):
    """Text means nothing under forced acceptance, but every parameter's code path runs."""
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=1.0, seed=4, ignore_eos=True),
        SamplingParams(temperature=0.7, seed=5, ignore_eos=True),
        SamplingParams(temperature=0.0, repetition_penalty=1.2, presence_penalty=0.5, seed=6),
        SamplingParams(temperature=0.0, logprobs=2, ignore_eos=True),
        SamplingParams(temperature=0.0, allowed_token_ids=[7, 8, 9], ignore_eos=True),
        SamplingParams(temperature=1.0, top_k=5, top_p=0.8, seed=7, ignore_eos=True),
    ]
    run = spec_engine.generate(prompts, max_tokens=24, sampling_params=params)
    assert all(len(output) == 24 for output in run.outputs)
    assert {step.token for step in run.steps if step.index == 4} <= {7, 8, 9}
    again = spec_engine.generate(prompts, max_tokens=24, sampling_params=params)
    assert again.outputs == run.outputs


@pytest.mark.acceptance_rate(0.0)
def test_a_target_with_one_possible_token_emits_it_and_says_so(spec_engine):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, allowed_token_ids=[7], ignore_eos=True)
    run = spec_engine.generate([[1, 2, 3]], max_tokens=12, sampling_params=params)
    assert run.outputs == [[7] * 12]


@pytest.mark.acceptance_rate(0.5)
def test_samples_of_one_prompt(spec_engine):
    from vllm import SamplingParams

    params = SamplingParams(n=3, temperature=1.0, ignore_eos=True)
    run = spec_engine.generate([[1, 2], [3, 4]], max_tokens=20, sampling_params=params)
    assert [(r.key, r.sample) for r in run.requests] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert len({tuple(output) for output in run.outputs}) == 6
    accepted = {}
    for step in run.steps:
        accepted.setdefault((step.request, step.sample), []).append(step.accepted)
    assert len(accepted) == 6
    assert accepted[0, 0] == accepted[0, 1] == accepted[0, 2]  # equal key: equal decisions


@pytest.mark.acceptance_rate(0.5)
def test_equal_keys_have_equal_histories(spec_engine, prompts):
    run = spec_engine.generate(prompts[:4], max_tokens=30, keys=[9, 9, 9, 2**32 - 1])
    histories = [[s.accepted for s in run.steps if s.index == i] for i in range(4)]
    assert histories[0] == histories[1] == histories[2] != histories[3]


@pytest.mark.acceptance_rate(0.5)
def test_strings_and_texts(spec_engine):
    run = spec_engine.generate(["hello", "hëllo wörld"], max_tokens=12)
    assert len(run.texts) == 2
    assert all(isinstance(text, str) and text for text in run.texts)


@pytest.mark.acceptance_rate(0.5)
def test_the_end_of_the_context(spec_engine_factory):
    engine = spec_engine_factory(max_num_seqs=2)
    room = engine.info["max_model_len"]
    run = engine.generate([[5] * (room - 20)], max_tokens=100)
    assert len(run.outputs[0]) == 20


@pytest.mark.acceptance_rate(1.0)
def test_a_stop_token_inside_an_accepted_run(spec_engine):
    from vllm import SamplingParams

    free = spec_engine.generate([[1, 5, 7, 9]], max_tokens=24)
    inside = next(s for s in free.steps if s.step == 2).proposed[1]
    first = free.outputs[0].index(inside)
    params = SamplingParams(temperature=0.0, stop_token_ids=[inside], ignore_eos=True)
    run = spec_engine.generate([[1, 5, 7, 9]], max_tokens=24, sampling_params=params)
    assert run.outputs == [free.outputs[0][: first + 1]]
    assert run.requests[0].finish_reason == "stop"


@pytest.mark.acceptance_rate(0.5)
def test_requests_join_and_leave_a_running_batch(spec_engine, prompts):
    with spec_engine.run() as run:
        run.add(prompts[0], key=10, max_tokens=40)
        run.step(3)
        run.add(prompts[1], key=11, max_tokens=10)
        run.step(2)
        run.abort(10)
        run.add(prompts[2], key=12, max_tokens=20)
    assert [len(output) for output in run.outputs[1:]] == [10, 20]
    assert 0 < len(run.outputs[0]) < 40
    assert [r.finish_reason for r in run.requests] == ["abort", "length", "length"]
    assert {step.request for step in run.steps} == {10, 11, 12}


@pytest.mark.acceptance_rate(0.0)
def test_a_change_of_plan_takes_effect_at_the_next_proposal(spec_engine):
    with spec_engine.run() as run:
        run.add([1, 2, 3], max_tokens=60)
        run.step(6)
        spec_engine.set_acceptance(1.0)
        run.step(4)
        spec_engine.set_acceptance(rates=[1.0, 1.0, 0.0])
    versions = [s.plan_version for s in run.steps]
    assert versions == sorted(versions)
    assert set(versions) == {0, 1, 2}
    for step in run.steps:
        assert step.accepted == min((0, 3, 2)[step.plan_version], step.drafted)
    # Five verification steps happened before the change; the drafts of the sixth were made.
    assert versions.count(0) == 6
    assert len(run.plans) == 3


@pytest.mark.acceptance_rate(0.5)
def test_requests_given_to_vllm_directly_are_keyed_by_arrival(spec_engine):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=30)
    with spec_engine.run() as run:
        spec_engine.llm.generate(
            [{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [3]}], params, use_tqdm=False
        )
    assert {s.request for s in run.steps} == {0, 1}
    for step in run.steps:
        assert step.accepted == min(spec_engine.plan.decide(step.request, step.step), step.drafted)


@pytest.mark.acceptance_rate(0.5)
def test_a_foreign_request_beside_our_own(spec_engine):
    """Both have key 0; their steps are kept apart."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=20)
    with spec_engine.run() as run:
        run.add([1, 2, 3], max_tokens=20)
        spec_engine.llm.llm_engine.add_request("direct", {"prompt_token_ids": [4, 5]}, params)
    run.check()
    own, foreign = ([s.accepted for s in run.steps if s.index == i] for i in (0, -1))
    assert own[:5] == foreign[:5]
    assert len(run.outputs) == 1


@pytest.mark.acceptance_rate(0.5)
def test_requests_left_behind_do_not_reach_the_next_test(spec_engine):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=50)
    spec_engine.llm.llm_engine.add_request("left", {"prompt_token_ids": [4, 5]}, params)
    spec_engine.begin_test(None, where="")
    spec_engine.set_acceptance(0.5)
    run = spec_engine.generate([[1, 2, 3]], max_tokens=8)
    assert {step.index for step in run.steps} == {0}
    assert all(len(step.rows) == 1 for step in run.scheduler)


@pytest.mark.acceptance_rate(0.5)
def test_a_closed_or_dead_engine_is_replaced(spec_engine_factory):
    engine = spec_engine_factory(max_num_seqs=3)
    engine.close()
    with pytest.raises(EngineError, match=r"^this engine is closed; start another$"):
        engine.generate([[1]])
    second = spec_engine_factory(max_num_seqs=3)
    assert second is not engine
    with pytest.raises(Exception, match="no_such_method"):
        second.call_workers("no_such_method")
    assert not second.alive
    third = spec_engine_factory(max_num_seqs=3)
    assert third is not second
    assert len(third.generate([[1]], max_tokens=4).outputs[0]) == 4


def test_a_run_takes_the_plan_in_force_when_it_is_entered(spec_engine):
    spec_engine.set_acceptance(0.0)
    run = spec_engine.run()
    spec_engine.set_acceptance(1.0)
    with run:
        run.add([1, 2, 3], max_tokens=20)
    assert run.acceptance.rate == 1


@pytest.mark.acceptance_rate(0.5)
def test_numpy_integers_are_integers(spec_engine):
    import numpy as np

    prompt, key = np.array([1, 5, 7, 9]), np.int64(3)
    run = spec_engine.generate([prompt], max_tokens=8, keys=[key])
    assert run.outputs == spec_engine.generate([[1, 5, 7, 9]], max_tokens=8, keys=[3]).outputs
    assert {type(step.request) for step in run.steps} == {int}


@pytest.mark.acceptance_rate(0.5)
def test_a_run_that_verified_nothing_has_no_rate(spec_engine):
    run = spec_engine.generate([[1, 2, 3]], max_tokens=1)
    assert math.isnan(run.acceptance.rate)
    run.check()
    assert run.checked["acceptance"] == "skipped: no verification step in this run"


@pytest.mark.acceptance_rate(0.5)
def test_an_exception_inside_a_run_leaves_the_engine_usable(spec_engine):
    def broken():
        with spec_engine.run() as run:
            run.add([1, 2, 3], max_tokens=50)
            run.step(3)
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        broken()
    assert len(spec_engine.generate([[4, 5]], max_tokens=8).outputs[0]) == 8


@pytest.mark.acceptance_rate(0.5)
def test_kv_blocks_held_and_given_back(spec_engine, prompts):
    run = spec_engine.generate(prompts, max_tokens=40)
    block_size = spec_engine.info["block_size"]
    for step, blocks in zip(run.scheduler, run.kv_cache.blocks, strict=True):
        for row in step.rows:
            assert blocks[row.request] == row.blocks
            # Enough for what is computed in this step, and at most one block of lookahead.
            needed = -(-(row.computed + row.tokens) // block_size)
            assert needed <= row.blocks <= needed + 1
    assert run.kv_cache.pool_before == run.kv_cache.pool_after > 0


@pytest.mark.acceptance_rate(0.5)
def test_info_names_what_ran(spec_engine):
    info = spec_engine.info
    assert info["model_runner"] == "v2"
    assert info["method"] == "eagle"
    assert info["num_speculative_tokens"] == 3
    assert info["device"] in ("cpu", "cuda")
    assert info["speculator"] == "EagleSpeculator"


@pytest.mark.acceptance_rate(0.5)
def test_a_run_survives_json(spec_engine, prompts):
    import json

    from pytest_synthaccept import SpecRun

    run = spec_engine.generate(prompts, max_tokens=20, lossless=True)
    assert all(step.margins for step in run.steps)
    back = SpecRun.from_dict(json.loads(json.dumps(run.to_dict())))
    assert back.to_dict() == run.to_dict()
    assert back.steps == run.steps
    assert back.acceptance == run.acceptance
    assert back.kv_cache == run.kv_cache
    back.check()
