"""The tiny target's tokenizer: one token per byte, so that any text goes there and back.

Byte-level BPE without merges: three special tokens, the 256 bytes, and entries that
only fill up the vocabulary, so that every token id the model can emit has a text.
"""

from __future__ import annotations

import json

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|pad|>")
"""Ids 0, 1, 2; the 256 bytes follow."""


def tokenizer_files(vocab_size: int, model_max_length: int) -> dict[str, bytes]:
    """``tokenizer.json`` and ``tokenizer_config.json`` for ``vocab_size`` (>= 259) token ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    byte_symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = [*SPECIAL_TOKENS, *byte_symbols]
    symbols += [f"<{i}>" for i in range(len(symbols), vocab_size)]
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    # use_regex=False: without merges there is nothing to keep together.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL_TOKENS])
    begin, end, pad = SPECIAL_TOKENS
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
    }
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }
