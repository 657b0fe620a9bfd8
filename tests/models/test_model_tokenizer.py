"""The byte tokenizer, as transformers (and so vLLM) loads it."""

from __future__ import annotations

import pytest

from pytest_synthaccept.models import tiny_target
from pytest_synthaccept.models.tokenizer import SPECIAL_TOKENS

TEXTS = {
    "empty": "",
    "plain": "The quick brown fox.",
    "white space": "  two\n\n\tlines \r\n",
    "umlauts": "Grüße, naïve Zoë",
    "other scripts": "漢字 и кириллица עברית",
    "emoji": "🦙🚀",
    "every low code point": "".join(map(chr, range(256))),
    "looks like a filler": "<300>",
    "clean-up bait": "do n't , . ! ?",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_target(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("name", TEXTS)
def test_text_goes_there_and_back(tokenizer, name):
    text = TEXTS[name]
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())  # one token per byte, nothing added
    assert all(3 <= i < 259 for i in ids)
    assert tokenizer.decode(ids) == text


def test_size_is_the_model_s(tokenizer):
    assert len(tokenizer) == 512
    assert tokenizer.model_max_length == 4096


def test_special_tokens(tokenizer):
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id] == [0, 1, 2]
    assert tokenizer.encode("".join(SPECIAL_TOKENS)) == [0, 1, 2]
    assert tokenizer.decode([0, 1, 2], skip_special_tokens=True) == ""


def test_every_other_id_has_a_text(tokenizer):
    texts = {tokenizer.convert_ids_to_tokens(i) for i in range(512)}
    assert len(texts) == 512
    assert tokenizer.decode([259, 511]) == "<259><511>"
