import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdmux_actor.messages import SampledToken
from pdmux_actor.serving.detokenizer import Detokenizer, Vocabulary

TEXTS = st.text(alphabet=st.sampled_from("ab \n<>éßжЖ日本語🙂👩‍👧ไทยEND"), max_size=40)


def byte_level_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    for word in ["Ġhello", "Ġworld", "th", "EN", "æĹ", "¥æ"]:  # the last two end and begin inside a character
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>"), AddedToken("日本 x")])
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """Llama-2 style: prefix space, byte fallback."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for word in ["▁", "▁Hello", "▁world", "lo", "é", "▁a", "END"]:
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


BYTE_LEVEL = Vocabulary(byte_level_tokenizer())
SENTENCEPIECE = Vocabulary(sentencepiece_tokenizer())
NUM_WORDS = SENTENCEPIECE.tokenizer.get_vocab_size()


def chunks_of(token_ids: list[int], seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    chunks = []
    while token_ids:
        size = rng.randint(1, 5)
        chunks.append(token_ids[:size])
        token_ids = token_ids[size:]
    return chunks


def stream_text(detokenizer: Detokenizer, chunks: list[list[int]]) -> str:
    text = ""
    for chunk in chunks:
        piece = detokenizer.push(chunk)
        text += piece.text
        if piece.stop:
            return text
    return text + detokenizer.finish().text


@given(
    token_ids=st.lists(st.integers(0, BYTE_LEVEL.tokenizer.get_vocab_size() + 3)),
    words=TEXTS,
    seed=st.integers(0, 99),
)
def test_detokenizer__byte_level_random_ids__equals_decode_of_all(token_ids, words, seed):
    token_ids = token_ids + BYTE_LEVEL.tokenizer.encode(words).ids + token_ids[:3]
    expected = BYTE_LEVEL.tokenizer.decode(token_ids, skip_special_tokens=True)

    assert stream_text(Detokenizer(BYTE_LEVEL), chunks_of(token_ids, seed)) == expected


@given(parts=st.lists(st.one_of(TEXTS, st.integers(257, NUM_WORDS + 2)), max_size=12), seed=st.integers(0, 99))
def test_detokenizer__byte_fallback_well_formed_ids__equals_decode_of_all(parts, seed):
    token_ids: list[int] = []
    for part in parts:
        token_ids += [part] if isinstance(part, int) else [byte + 1 for byte in part.encode()]
    expected = SENTENCEPIECE.tokenizer.decode(token_ids, skip_special_tokens=True)

    assert stream_text(Detokenizer(SENTENCEPIECE), chunks_of(token_ids, seed)) == expected


@given(words=st.lists(st.integers(257, NUM_WORDS - 1), min_size=2, max_size=24), cut=st.integers(1, 23))
def test_detokenizer__byte_fallback_behind_a_prompt__is_what_follows_its_text(words, cut):
    prompt, output = words[:cut], words[cut:]
    text_of_prompt = SENTENCEPIECE.tokenizer.decode(prompt)
    if not text_of_prompt:
        return  # nothing but the spaces that a decoder takes from a text's beginning

    text = stream_text(Detokenizer(SENTENCEPIECE, prompt_token_ids=prompt), [output])

    assert text_of_prompt + text == SENTENCEPIECE.tokenizer.decode(words)


def test_detokenizer__byte_fallback_behind_a_special_token__begins_a_text():
    mark, word = (SENTENCEPIECE.tokenizer.token_to_id(token) for token in ("<s>", "▁Hello"))

    behind_a_word, behind_a_mark = (Detokenizer(SENTENCEPIECE, prompt_token_ids=[word, last]) for last in (word, mark))

    assert (stream_text(behind_a_word, [[word]]), stream_text(behind_a_mark, [[word]])) == (" Hello", "Hello")


@given(token_ids=st.lists(st.integers(0, NUM_WORDS + 2), max_size=60), seed=st.integers(0, 99))
def test_detokenizer__byte_fallback_broken_bytes__independent_of_chunks_and_bounded(token_ids, seed):
    whole = stream_text(Detokenizer(SENTENCEPIECE), [token_ids])

    detokenizer = Detokenizer(SENTENCEPIECE)
    text = ""
    for chunk in chunks_of(token_ids, seed):
        text += detokenizer.push(chunk).text
        # special and unknown tokens join a run of broken bytes without adding to it
        held = [t for t in token_ids if SENTENCEPIECE.token_bytes.has_text(t)]
        assert detokenizer.held_back_tokens <= 16 + len(token_ids) - len(held)

    assert text + detokenizer.finish().text == whole


@given(words=TEXTS, seed=st.integers(0, 99))
def test_detokenizer__while_streaming__never_shows_part_of_a_character(words, seed):
    detokenizer = Detokenizer(BYTE_LEVEL)

    shown = ""
    for chunk in chunks_of(BYTE_LEVEL.tokenizer.encode(words).ids, seed):
        shown += detokenizer.push(chunk).text
        assert words.startswith(shown)


@given(
    words=TEXTS,
    stop=st.lists(TEXTS.filter(bool), min_size=1, max_size=1),
    shows_stop=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=300)
def test_detokenizer__stop_string__text_is_cut_at_its_first_occurrence(words, stop, shows_stop, seed):
    token_ids = BYTE_LEVEL.tokenizer.encode(words).ids
    full = BYTE_LEVEL.tokenizer.decode(token_ids, skip_special_tokens=True)
    before, found, _ = full.partition(stop[0])
    expected = before + found if shows_stop else before

    detokenizer = Detokenizer(BYTE_LEVEL, stop=stop, shows_stop=shows_stop)

    assert stream_text(detokenizer, chunks_of(token_ids, seed)) == expected


@given(words=TEXTS, stop=st.lists(TEXTS.filter(bool), max_size=3), seed=st.integers(0, 99))
def test_detokenizer__shown_text__is_that_of_the_tokens_not_held_back(words, stop, seed):
    token_ids = BYTE_LEVEL.tokenizer.encode(words).ids
    detokenizer = Detokenizer(BYTE_LEVEL, stop=stop)
    shown, seen = "", []

    for chunk in chunks_of(token_ids, seed):
        piece = detokenizer.push(chunk)
        if piece.stop:
            return
        shown += piece.text
        seen += chunk
        reflected = seen[: len(seen) - detokenizer.held_back_tokens]
        assert shown == BYTE_LEVEL.tokenizer.decode(reflected, skip_special_tokens=True)


@given(
    token_ids=st.lists(st.integers(0, BYTE_LEVEL.tokenizer.get_vocab_size()), max_size=40),
    stop=st.lists(TEXTS.filter(bool), max_size=2),
    cut=st.integers(0, 40),
)
def test_detokenizer__continued_elsewhere__neither_repeats_nor_loses_text(token_ids, stop, cut):
    expected = stream_text(Detokenizer(BYTE_LEVEL, stop=stop), [token_ids])
    first = Detokenizer(BYTE_LEVEL, stop=stop)
    before = first.push(token_ids[:cut])
    if before.stop:
        return
    resent = token_ids[:cut][: len(token_ids[:cut]) - first.held_back_tokens]

    second = Detokenizer(BYTE_LEVEL, stop=stop, prior_token_ids=resent)
    after = stream_text(second, [token_ids[len(resent) :]])

    assert before.text + after == expected


@pytest.mark.parametrize(
    ("stop", "text"), [("\n\nUser:", "a\n\n\nb"), ("END", "EEEN"), ("aab", "xaaac"), ("aab", "aaab")]
)
def test_detokenizer__continued_behind_what_a_stop_string_begins_with__shows_no_text_twice(stop, text):
    token_ids = BYTE_LEVEL.tokenizer.encode(text).ids
    expected = text.partition(stop)[0]
    for cut in range(len(token_ids)):
        first = Detokenizer(BYTE_LEVEL, stop=(stop,))
        before = first.push(token_ids[:cut]).text
        resent = token_ids[: cut - first.held_back_tokens]

        second = Detokenizer(BYTE_LEVEL, stop=(stop,), prior_token_ids=resent)

        assert second.held_back_tokens == 0
        assert before + stream_text(second, [token_ids[len(resent) :]]) == expected


def test_detokenizer__stop_string_inside_min_tokens__is_shown():
    token_ids = BYTE_LEVEL.tokenizer.encode("aENDbEND").ids
    detokenizer = Detokenizer(BYTE_LEVEL, stop=("END",), min_tokens=5)

    piece = detokenizer.push(token_ids)

    assert piece.text == "aENDb"
    assert piece.stop


def test_detokenizer__stopped__counts_the_tokens_up_to_the_match():
    token_ids = BYTE_LEVEL.tokenizer.encode("abXcd").ids

    piece = Detokenizer(BYTE_LEVEL, stop=("X",)).push(token_ids)

    assert (piece.text, piece.num_tokens, piece.stop) == ("ab", 3, "X")


def test_detokenizer__finish_with_incomplete_character__shows_a_replacement():
    detokenizer = Detokenizer(BYTE_LEVEL)

    detokenizer.push(BYTE_LEVEL.tokenizer.encode("日").ids[:2])

    assert detokenizer.held_back_tokens == 2
    assert detokenizer.finish().text == "\ufffd"


@pytest.mark.parametrize(
    ("vocabulary", "token", "shown"),
    [(BYTE_LEVEL, "Ġhello", " hello"), (BYTE_LEVEL, "<eos>", "<eos>"), (SENTENCEPIECE, "▁Hello", " Hello")],
)
def test_logprob__token__carries_string_and_bytes(vocabulary, token, shown):
    token_id = vocabulary.tokenizer.token_to_id(token)

    logprob = vocabulary.logprob(SampledToken(token_id, -0.5, ((token_id, -0.5),)))

    assert (logprob.token, bytes(logprob.bytes).decode(), logprob.logprob) == (shown, shown, -0.5)
    assert [(top.token, top.logprob) for top in logprob.top] == [(shown, -0.5)]


def test_logprob__part_of_a_character__has_its_exact_byte():
    (token_id, *_) = BYTE_LEVEL.tokenizer.encode("é").ids

    logprob = BYTE_LEVEL.logprob(SampledToken(token_id, -1.0))

    assert logprob.bytes == [0xC3]
    assert logprob.token == "\ufffd"


@pytest.mark.parametrize(("vocabulary", "special"), [(BYTE_LEVEL, "<eos>"), (SENTENCEPIECE, "<s>")])
def test_special_tokens__not_to_be_skipped__are_text_but_for_the_one_that_ends(vocabulary, special) -> None:
    mark = vocabulary.tokenizer.token_to_id(special)
    word = vocabulary.tokenizer.token_to_id("EN" if special == "<eos>" else "END")

    def text_of(**how) -> str:
        detokenizer = Detokenizer(vocabulary, **how)
        pieces = [detokenizer.push([mark, word]), detokenizer.push([mark], ends=True), detokenizer.finish()]
        return "".join(piece.text for piece in pieces)

    shown = vocabulary.tokenizer.decode([word])
    assert text_of() == shown
    assert text_of(skip_special_tokens=False) == special + shown
    assert text_of(skip_special_tokens=False, shows_stop=True) == special + shown + special
    assert text_of(shows_stop=True) == shown
