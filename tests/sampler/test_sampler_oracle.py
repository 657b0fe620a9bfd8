"""The oracle of lossless runs: its decisions, its rewriting, its ledger rows."""

import pytest
import torch
from sampler_cases import DEVICE, plan

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.run.ledger import DRAFTLESS, PADDED, VERIFICATION, LedgerRow
from pytest_synthaccept.sampler import Oracle, SamplerState
from pytest_synthaccept.sampler.oracle import decide

K, SLOTS, V, LENGTH = 3, 8, 50, 40


def tensor(*values):
    return torch.tensor(values, device=DEVICE)


@pytest.fixture
def make():
    def build(the_plan, lanes=4):
        prefill_len = torch.full((SLOTS,), 5, dtype=torch.int32, device=DEVICE)
        state = SamplerState(
            num_slots=SLOTS, num_speculative_tokens=K, prefill_len=prefill_len, device=DEVICE
        )
        state.begin(the_plan)
        oracle = Oracle(state, num_slots=SLOTS, max_model_len=LENGTH, vocab_size=V)
        for lane in range(lanes):
            state.open_lane(key=lane * 7, sample=0)
            state.assign(lane + 1, lane)
            oracle.expect(lane, [(lane * 3 + i) % V for i in range(LENGTH)])
        return state, oracle

    return build


@pytest.mark.parametrize("sampling", ["exact", "random"])
@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1])
def test_decisions_are_the_plans_bit_for_bit(make, sampling, seed):
    the_plan = AcceptancePlan.from_rate(0.5, num_speculative_tokens=K, sampling=sampling, seed=seed)
    state, _ = make(the_plan)
    lanes = torch.arange(4, device=DEVICE)
    for step in range(40):
        planned = decide(state, lanes, torch.zeros_like(lanes)).tolist()
        assert planned == [the_plan.decide(lane * 7, step) for lane in range(4)]
        state.lanes[:4, 2] += 1


@pytest.mark.parametrize("script", [[3, 0, 2], {0: [3, 0], 7: [1], 14: [2, 2, 0]}, {99: [1]}])
def test_a_script_decides(make, script):
    """Beside a plan without one: each row goes by its own version."""
    the_plan = AcceptancePlan.from_script(script, num_speculative_tokens=K)
    other = AcceptancePlan.from_rate(0.5, num_speculative_tokens=K)
    state, _ = make(other)
    state.set_plan(the_plan)
    lanes = torch.arange(4, device=DEVICE)
    for step in range(10):
        for version, expected in ((0, other), (1, the_plan)):
            versions = torch.full_like(lanes, version)
            planned = decide(state, lanes, versions).tolist()
            assert planned == [expected.decide(lane * 7, step) for lane in range(4)]
        state.lanes[:4, 2] += 1


@pytest.mark.parametrize("step", [0, 7, 2**24 + 5, 2**31 - 2])
def test_rows_of_many_plans_decide_as_the_plans_say(make, step):
    """One call; neither the first directory, which fits every key, nor the widest is the last."""
    shared = {"num_speculative_tokens": K}
    plans = [
        AcceptancePlan.from_script([3, 0, 2, 1, 1], **shared),
        AcceptancePlan.from_script({key: [key % 4, 3 - key % 4] for key in range(40)}, **shared),
        AcceptancePlan.from_rate(0.6, **shared),
        AcceptancePlan.from_rate(0.4, sampling="random", seed=2**32 - 1, **shared),
        AcceptancePlan.from_script({21: [1, 3], 0: [2, 0, 0], 99: [3]}, **shared),
    ]
    state, _ = make(plans[0])
    for the_plan in plans[1:]:
        state.set_plan(the_plan)
    lanes = torch.arange(4, device=DEVICE).repeat(len(plans))
    versions = torch.arange(len(plans), device=DEVICE).repeat_interleave(4)
    state.lanes[:4, 2] = step
    for at in range(step, step + 5):
        planned = decide(state, lanes, versions).tolist()
        assert planned == [p.decide(lane * 7, at) for p in plans for lane in range(4)]
        state.lanes[:4, 2] += 1


def test_a_script_of_the_last_run_does_not_decide(make):
    """Nor does its wider directory, which the next run's script is read with."""
    shared = {"num_speculative_tokens": K}
    state, _ = make(AcceptancePlan.from_script({key: [3] for key in range(40)}, **shared))
    for script, expected in (({0: [1], 21: [2]}, [1, 0, 0, 2]), ([1], [1] * 4)):
        state.begin(AcceptancePlan.from_script(script, **shared))
        for lane in range(4):
            state.open_lane(key=lane * 7, sample=0)
        lanes = torch.arange(4, device=DEVICE)
        assert decide(state, lanes, torch.zeros_like(lanes)).tolist() == expected
    state.begin(AcceptancePlan.from_rates([1.0, 1.0, 0.0]))
    assert decide(state, lanes, torch.zeros_like(lanes)).tolist() == [2] * 4


@pytest.mark.parametrize("accept", [0, 1, 2, 3])
def test_planned_drafts_are_the_targets_and_the_next_is_not(make, accept):
    rates = [1.0] * accept + [0.0] * (K - accept)
    _, oracle = make(AcceptancePlan.from_rates(rates))
    # Row 0 proposes what the target says, row 1 something else, row 2 is nobody's.
    drafts = tensor([10, 11, 12], [49, 48, 47], [1, 2, 3])
    natural = drafts.clone()
    total_len = torch.zeros(SLOTS, dtype=torch.int32, device=DEVICE)
    total_len[1] = total_len[2] = 10
    oracle.rewrite(drafts, tensor(1, 2, 0), total_len)
    true = tensor([10, 11, 12], [13, 14, 15])
    assert torch.equal(drafts[:2, :accept], true[:, :accept])
    if accept < K:
        assert (drafts[:2, accept] != true[:, accept]).all()
    assert ((drafts >= 0) & (drafts < V)).all()
    assert torch.equal(drafts[2], natural[2])


def test_a_wrong_draft_stays_in_the_vocabulary(make):
    _, oracle = make(AcceptancePlan.from_rate(0.0, num_speculative_tokens=K))
    oracle.expect(0, [V - 1] * LENGTH)
    drafts = tensor([V - 1, V - 1, V - 1])
    oracle.rewrite(drafts, tensor(1), torch.full((SLOTS,), 9, device=DEVICE))
    assert drafts.tolist() == [[0, V - 1, V - 1]]


def test_more_lanes_than_the_first_buffer(make):
    state, oracle = make(plan(1.0, 1.0, 1.0), lanes=4)
    for lane in range(4, 200):
        state.open_lane(lane, 0)
        oracle.expect(lane, [lane % V] * LENGTH)
    state.assign(5, 199)
    drafts = tensor([0, 0, 0])
    oracle.rewrite(drafts, tensor(5), torch.full((SLOTS,), 9, device=DEVICE))
    assert drafts.tolist() == [[199 % V] * 3]


def test_ledger_rows_and_counters(make):
    """A verification, a row short of drafts, a padded prefill row, a row without drafts."""
    the_plan = AcceptancePlan.from_rates([1.0, 1.0, 0.0])
    state, oracle = make(the_plan)
    slots = tensor(1, 2, 3, 4)
    proposals = tensor([1, 2, 3], [4, 5, 6], [7, 8, 9], [7, 7, 7])
    oracle.rewrite(proposals.clone(), slots, torch.full((SLOTS,), 10, device=DEVICE))
    cu_num_logits = tensor(0, 4, 6, 10, 11).int()
    draft_sampled = tensor(0, 20, 21, 22, 0, 23, 0, 0, 0, 0, 0)
    pos = tensor(9, 10, 11, 12, 9, 10, 4, 5, 6, 7, 9)
    sampled = tensor([20, 21, 30, -1], [23, 31, -1, -1], [32, -1, -1, -1], [33, -1, -1, -1])
    num_sampled = tensor(3, 2, 1, 1).int()
    oracle.record(draft_sampled, cu_num_logits, pos, slots, sampled, num_sampled)
    rows = [LedgerRow.of(row) for row in state.drain()]
    assert rows == [
        LedgerRow(0, 0, 10, 3, 3, 2, 2, 0, VERIFICATION, 30, (20, 21, 22)),
        LedgerRow(1, 0, 10, 1, 1, 2, 1, 0, VERIFICATION, 31, (23, -1, -1)),
        LedgerRow(2, 0, 5, 3, 0, 0, 0, 0, PADDED, 32, (0, 0, 0)),
        LedgerRow(3, 0, 10, 0, 0, 0, 0, 0, DRAFTLESS, 33, (-1, -1, -1)),
    ]
    assert state.lanes[:4, 2].tolist() == [1, 1, 0, 0]
