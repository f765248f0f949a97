import pytest

from traces.errors import BadParameter
from traces.prompts import prompt_token_ids
from traces.record import TraceRecord


def ids(input_tokens, hashes=(), *, index=0, block_tokens=16, seed=0, **options):
    record = TraceRecord(arrival_s=0.0, input_tokens=input_tokens, output_tokens=1, prefix_block_hashes=hashes)
    return prompt_token_ids(record, index=index, block_tokens=block_tokens, seed=seed, **options)


@pytest.mark.parametrize("input_tokens", [1, 15, 16, 17, 48, 49, 700])
def test_prompt_token_ids__any_length__is_exact_and_in_range(input_tokens):
    prompt = ids(input_tokens, (1, 2, 3))

    assert len(prompt) == input_tokens
    assert all(36 <= token_id < 94 for token_id in prompt)


def test_prompt_token_ids__shared_partial_block__shares_its_part():
    assert ids(40, (1, 2, 3))[:36] == ids(36, (1, 2, 3), index=9)


def test_prompt_token_ids__no_hashes__differ_by_index_and_seed_and_repeat_otherwise():
    assert ids(30, index=1) == ids(30, index=1)
    assert ids(30, index=1) != ids(30, index=2)
    assert ids(30, index=1) != ids(30, index=1, seed=1)


def test_prompt_token_ids__beyond_its_blocks__the_rest_is_its_own():
    one, two = ids(40, (1,), index=1), ids(40, (1,), index=2)

    assert one[:16] == two[:16]
    assert one[16:] != two[16:]


def test_prompt_token_ids__negative_hash__is_a_hash_like_any_other():
    assert ids(16, (-1,)) == ids(16, (-1,), index=5)
    assert ids(16, (-1,)) != ids(16, (1,))


def test_prompt_token_ids__vocabulary_of_special_tokens_only__is_refused():
    with pytest.raises(BadParameter, match="vocab_size"):
        ids(5, vocab_size=36)


def test_prompt_token_ids__blocks_of_unknown_size__are_refused():
    with pytest.raises(BadParameter, match="block_tokens"):
        ids(5, (1,), block_tokens=None)


def test_prompt_token_ids__byte_level_vocabularies__are_text() -> None:
    """The first ids of three kinds: characters at once, after SmolLM2's special tokens, and Llama 2's bytes."""
    printable = [chr(byte) for byte in range(33, 127)]
    bytes_of_llama_2 = [chr(byte) for byte in range(256)]
    vocabularies = (printable, [""] * 17 + printable, [""] * 3 + bytes_of_llama_2)

    texts = [[vocabulary[token_id] for token_id in set(ids(700))] for vocabulary in vocabularies]

    assert all(character in printable for text in texts for character in text)
