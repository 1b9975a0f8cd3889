"""Every sample once: what becomes of each token of each text, and in which micro-batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_api.errors import InvalidInput
from quantfleet_worker.data import (
    CalibrationData,
    evaluation_windows,
    padded_ids,
    permutation,
    prepare_calibration,
)
from quantfleet_worker.texts import Text
from quantfleet_worker.tokenizer import load_tokenizer
from tiny_models import VOCAB_SIZE, make_tiny_tokenizer, tiny_texts


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tiny_tokenizer(folder)
    return load_tokenizer(folder)


class Characters:
    """A tokenizer whose ids are the code points, so that tests can count by eye."""

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> Any:
        assert not add_special_tokens
        return {"input_ids": [ord(character) for character in text]}

    def apply_chat_template(self, *_: Any, **__: Any) -> Any:
        raise AssertionError


def calibrate(texts: list[Text], **options: Any) -> CalibrationData:
    settings = {"sample_count": 100, "sequence_length": 5, "vocab_size": 0x110000, **options}
    return prepare_calibration(texts, Characters(), **settings)


def samples(data: CalibrationData) -> list[str]:
    return [
        "".join(map(chr, data.sample(index))) for b in data.micro_batches for index in b.samples
    ]


def test_texts_stay_separate_and_are_cut_to_the_sequence_length() -> None:
    data = calibrate(["abc", "defghijk", "lmnop"])
    assert samples(data) == ["abc", "defgh", "lmnop"]
    assert data.counts.model_dump() == {
        "requested": 100,
        "available": 3,
        "used": 3,
        "dropped_short": 0,
        "truncated": 1,
        "tokens_used": 13,
        "tokens_truncated": 3,
        "tokens_dropped": 0,
    }


def test_short_and_empty_texts_are_passed_over_and_counted() -> None:
    data = calibrate(["ab", "", "cdef", "g", "hij", "klm"], min_tokens=3, sample_count=2)
    assert samples(data) == ["cdef", "hij"]
    assert (data.counts.dropped_short, data.counts.tokens_dropped) == (3, 3)
    assert samples(calibrate(["", "a"])) == ["a"]


def test_too_few_texts_are_counted_and_none_is_an_error() -> None:
    data = calibrate(["abc", "d"], sample_count=7, min_tokens=2)
    assert (data.counts.requested, data.counts.used) == (7, 1)
    with pytest.raises(InvalidInput, match="at least one text must have 9 tokens, got '2 texts wi"):
        calibrate(["abc", "d"], min_tokens=9)
    with pytest.raises(InvalidInput, match="all texts together must have 5 tokens"):
        calibrate(["abc", "d"], concatenate=True)


def test_concatenated_texts_fill_windows_and_the_rest_is_counted() -> None:
    data = calibrate(["abc", "defg", "hijkl"], concatenate=True)
    assert samples(data) == ["abcde", "fghij"]
    assert (data.counts.tokens_used, data.counts.tokens_dropped) == (10, 2)
    cut = calibrate(["abc", "defg", "hijkl"], concatenate=True, sample_count=1)
    assert samples(cut) == ["abcde"]
    assert (cut.counts.truncated, cut.counts.tokens_truncated) == (1, 2)


def test_consecutive_samples_make_a_micro_batch_padded_on_the_right() -> None:
    data = calibrate(["abc", "d", "efghi"], batch_size=2)
    first, second = data.micro_batches
    assert (first.samples, first.lengths) == ((0, 1), (3, 1))
    assert (second.samples, second.lengths) == ((2,), (5,))
    assert padded_ids(data.tokens, data.offsets, first).tolist() == [[97, 98, 99], [100, 0, 0]]
    assert padded_ids(data.tokens, data.offsets, second).tolist() == [[101, 102, 103, 104, 105]]


texts_strategy = st.lists(st.text("abcdefgh", max_size=12), max_size=12)


@given(
    texts=texts_strategy,
    length=st.integers(1, 8),
    count=st.integers(1, 12),
    least=st.integers(1, 4),
    batch=st.integers(1, 5),
    shuffled=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_separate_texts_are_each_a_sample_at_most_once_and_all_tokens_are_counted(
    texts: list[str], length: int, count: int, least: int, batch: int, shuffled: bool, seed: int
) -> None:
    order = permutation(len(texts), seed) if shuffled else range(len(texts))
    usable = [i for i in order if len(texts[i]) >= least]
    options = {"sequence_length": length, "sample_count": count, "min_tokens": least}
    options |= {"batch_size": batch, "shuffle": "Seeded" if shuffled else "Never", "seed": seed}
    if not usable:
        with pytest.raises(InvalidInput):
            calibrate(list(texts), **options)
        return
    data = calibrate(list(texts), **options)
    assert samples(data) == [texts[i][:length] for i in usable[:count]]
    members = [index for b in data.micro_batches for index in b.samples]
    assert members == list(range(data.counts.used))
    assert all(len(b.samples) == batch for b in data.micro_batches[:-1])
    assert [n for b in data.micro_batches for n in b.lengths] == [len(s) for s in samples(data)]
    walked = order if len(usable) < count else order[: order.index(usable[count - 1]) + 1]
    counts = data.counts
    assert counts.used + counts.dropped_short == len(walked)
    assert counts.tokens_used + counts.tokens_truncated + counts.tokens_dropped == sum(
        len(texts[i]) for i in walked
    )


@given(
    texts=texts_strategy,
    length=st.integers(1, 8),
    count=st.integers(1, 12),
    least=st.integers(1, 4),
)
def test_concatenated_windows_hold_every_token_once_in_order(
    texts: list[str], length: int, count: int, least: int
) -> None:
    stream = "".join(text for text in texts if len(text) >= least)
    expected = [stream[i * length : (i + 1) * length] for i in range(len(stream) // length)]
    options = {"sequence_length": length, "sample_count": count, "min_tokens": least}
    if not expected:
        with pytest.raises(InvalidInput):
            calibrate(list(texts), concatenate=True, **options)
        return
    data = calibrate(list(texts), concatenate=True, **options)
    assert samples(data) == expected[:count]
    counts = data.counts
    accounted = counts.tokens_used + counts.tokens_truncated + counts.tokens_dropped
    if len(expected) < count:
        assert accounted == sum(map(len, texts))
    else:
        lengths = np.cumsum([len(text) for text in texts])
        assert accounted in lengths


def test_the_seeded_order_is_fixed_for_all_time() -> None:
    assert permutation(8, 42) == [1, 0, 6, 4, 7, 5, 3, 2]  # order of sha256("42:i")
    assert permutation(8, 43) != permutation(8, 42)
    assert sorted(permutation(1000, 7)) == list(range(1000))


def test_the_digest_is_of_ids_lengths_and_grouping() -> None:
    base = calibrate(["abc", "de"])
    assert base.digest == calibrate(["abc", "de", ""]).digest
    others = [
        calibrate(["abcd", "e"]),
        calibrate(["abc", "df"]),
        calibrate(["de", "abc"]),
        calibrate(["abc", "de"], batch_size=2),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 5


def test_real_tokens_get_no_special_tokens_and_texts_no_filler(tokenizer: Any) -> None:
    texts = tiny_texts(4)
    data = prepare_calibration(
        texts, tokenizer, sample_count=3, sequence_length=1000, vocab_size=VOCAB_SIZE
    )
    assert [tokenizer.decode(data.sample(i)) for i in range(3)] == texts[:3]
    assert data.tokens.dtype == np.int32
    assert not set(data.tokens.tolist()) & set(tokenizer.all_special_ids)


def test_chats_go_through_the_template_as_it_is(tokenizer: Any) -> None:
    chat = ({"role": "user", "content": "river"}, {"role": "assistant", "content": "stone"})
    data = prepare_calibration(
        [chat], tokenizer, sample_count=1, sequence_length=1000, vocab_size=VOCAB_SIZE
    )
    assert tokenizer.decode(data.sample(0)) == "<|user|>\nriver\n<|assistant|>\nstone\n"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "text 2: the tokenizer must have a chat template to render messages"),
        ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
        ("{{ messages[", "text 2: the chat template must accept the messages"),
    ],
)
def test_a_template_that_is_missing_or_refuses_is_named(
    tmp_path: Path, template: str | None, message: str
) -> None:
    tokenizer = make_tiny_tokenizer(tmp_path)
    tokenizer.chat_template = template
    texts: list[Text] = ["plain", ({"role": "user", "content": "a"},)]
    with pytest.raises(InvalidInput) as caught:
        prepare_calibration(
            texts, tokenizer, sample_count=2, sequence_length=9, vocab_size=VOCAB_SIZE
        )
    assert message in str(caught.value)


def test_a_tokenizer_larger_than_the_model_is_refused(tokenizer: Any) -> None:
    with pytest.raises(InvalidInput, match="text 1: token ids must be below 20, the vocab_size"):
        prepare_calibration(
            tiny_texts(1), tokenizer, sample_count=1, sequence_length=9, vocab_size=20
        )


def test_evaluation_windows_are_spread_evenly_and_join_texts_by_a_blank_line() -> None:
    windows = evaluation_windows(
        ["abcdef", "ghij"], Characters(), window_count=3, window_length=3, vocab_size=0x110000
    )
    found = ["".join(map(chr, window)) for window in windows.tolist()]
    assert found == ["abc", "ef\n", "ghi"]  # of "abcdef", a blank line, "ghij", from 0, 4 and 8
    assert windows.dtype == torch.int64


@given(
    texts=st.lists(st.text("abc", max_size=9), min_size=1), n=st.integers(1, 5), w=st.integers(1, 6)
)
def test_evaluation_windows_never_overlap_and_start_at_even_distances(
    texts: list[str], n: int, w: int
) -> None:
    stream = "\n\n".join(texts)
    options = {"window_count": n, "window_length": w, "vocab_size": 200}
    if len(stream) < n * w:
        with pytest.raises(InvalidInput, match=f"{n} windows of {w} need that many tokens"):
            evaluation_windows(list(texts), Characters(), **options)
        return
    windows = evaluation_windows(list(texts), Characters(), **options)
    starts = [i * len(stream) // n for i in range(n)]
    assert all(b - a >= w for a, b in zip(starts, [*starts[1:], len(stream)], strict=True))
    assert windows.tolist() == [[ord(c) for c in stream[s : s + w]] for s in starts]
