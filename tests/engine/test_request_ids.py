import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_synthaccept.engine.request_ids import RequestId, format_id, parse_id, sample_of

U32 = st.integers(0, 2**32 - 1)


@given(run=st.integers(0, 10**6), order=st.integers(0, 10**6), key=U32)
def test_an_id_comes_back_from_what_a_worker_sees(run, order, key):
    given_id = format_id(run, order, key)
    assert parse_id(f"{given_id}-1a2b3c4d") == RequestId(run, order, key, 0)
    assert parse_id(f"12_{given_id}-00ff00ff") == RequestId(run, order, key, 12)


@pytest.mark.parametrize("foreign", ["6-1a2b3c4d", "cmpl-abc-0-1a2b", "1_6-1a2b3c4d", "_warmup_0_"])
def test_an_id_of_another_is_not_ours(foreign):
    assert parse_id(foreign) is None


def test_the_sample_of_a_foreign_id():
    assert sample_of("1_6-1a2b3c4d") == 1
    assert sample_of("6-1a2b3c4d") == 0
    assert sample_of("_warmup_0_") == 0
