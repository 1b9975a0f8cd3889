"""Texts become token micro-batches, micro-batches become leaves, leaves go to ranks.

Called by planning (`prepare_calibration`, `leaves`), by the layout (`shard`) and by verification
(`evaluation_windows`). Everything but `shard` is independent of the number of ranks.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import MicroBatch, SampleCount
from quantfleet_worker.texts import Text, load_texts
from quantfleet_worker.tokens import TokenIds, Tokenizer, token_ids

__all__ = [
    "CalibrationData",
    "evaluation_windows",
    "leaves",
    "load_texts",
    "padded_ids",
    "permutation",
    "prepare_calibration",
    "shard",
]

_CALIBRATION, _EVALUATION = "spec.calibration.source", "spec.evaluation.source"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationData:
    """The samples of a calibration: who they are, and what became of the texts."""

    micro_batches: tuple[MicroBatch, ...]
    tokens: TokenIds  # int32, all samples in order
    offsets: NDArray[np.int64]  # [samples + 1]; sample i is tokens[offsets[i] : offsets[i + 1]]
    counts: SampleCount
    digest: str  # SHA-256 of micro-batches, lengths and token ids

    def sample(self, index: int) -> TokenIds:
        """Token ids int32 [length] of one sample."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def prepare_calibration(
    texts: Sequence[Text],
    tokenizer: Tokenizer,
    *,
    sample_count: int,
    sequence_length: int,
    vocab_size: int,
    min_tokens: int = 1,
    concatenate: bool = False,
    batch_size: int = 1,
    shuffle: Literal["Never", "Seeded"] = "Never",
    seed: int = 42,
) -> CalibrationData:
    """The first `sample_count` usable samples, in file order or in the seeded order.

    1. A text of fewer than `min_tokens` tokens is passed over and counted; it takes no place.
    2. Separate: each text is a sample, cut to `sequence_length`. Concatenated: texts are joined
       without a separator and cut into windows of exactly `sequence_length`; what is left over
       and fills no window is dropped and counted.
    3. `batch_size` consecutive samples make a micro-batch; the last one may be smaller.

    Fewer samples than asked for show in the counts; none at all is InvalidInput.
    """
    order = range(len(texts)) if shuffle == "Never" else permutation(len(texts), seed)
    tokenized = _tokenized(texts, order, tokenizer, vocab_size)
    collect = _windows if concatenate else _separate
    samples, tally = collect(tokenized, sample_count, sequence_length, min_tokens)
    if not samples:
        together = "all texts together" if concatenate else "at least one text"
        least = sequence_length if concatenate else min_tokens
        raise tally.too_short(len(texts), f"{together} must have {least} tokens")
    micro_batches = _micro_batches([len(sample) for sample in samples], batch_size)
    return CalibrationData(
        micro_batches=micro_batches,
        tokens=np.concatenate(samples),
        offsets=np.cumsum([0, *(len(sample) for sample in samples)], dtype=np.int64),
        counts=tally.counts(samples, requested=sample_count, available=len(texts)),
        digest=_digest(samples, micro_batches),
    )


def padded_ids(tokens: TokenIds, offsets: NDArray[np.int64], batch: MicroBatch) -> Tensor:
    """Token ids int64 [samples, longest]; pads lie on the right and hold 0, which nobody reads.

    Sample i is tokens[offsets[i] : offsets[i + 1]].
    """
    ids = torch.zeros((len(batch.samples), max(batch.lengths)), dtype=torch.int64)
    for row, index in enumerate(batch.samples):
        sample = tokens[offsets[index] : offsets[index + 1]]
        ids[row, : len(sample)] = torch.from_numpy(sample.astype(np.int64))
    return ids


def permutation(count: int, seed: int) -> list[int]:
    """An order of range(count) that is the same with every version of every library."""
    return sorted(range(count), key=lambda i: hashlib.sha256(f"{seed}:{i}".encode()).digest())


def leaves(num_micro_batches: int, max_leaves: int) -> tuple[tuple[int, int], ...]:
    """Contiguous runs [start, end) of micro-batches, their sizes at most one apart."""
    count = min(num_micro_batches, max_leaves)
    bounds = [i * num_micro_batches // count for i in range(count)] + [num_micro_batches]
    return tuple(itertools.pairwise(bounds))


def shard(leaf_tokens: Sequence[int], world_size: int) -> tuple[tuple[int, int], ...]:
    """Leaf range [start, end) of each rank: contiguous, with the least possible longest rank.

    1. The least number of tokens that bounds every rank is found by bisection.
    2. Ranks are filled up to it in order, each leaving a leaf for every rank after it.

    With more ranks than leaves the last ranks get empty ranges.
    """
    limit = _least_limit(leaf_tokens, world_size)
    ranges, start = [], 0
    for rank in range(world_size):
        end, load = start, 0
        ranks_after = world_size - rank - 1
        while end < len(leaf_tokens):
            spare = len(leaf_tokens) - end - 1 >= ranks_after
            if end > start and (load + leaf_tokens[end] > limit or not spare):
                break
            load += leaf_tokens[end]
            end += 1
        ranges.append((start, end))
        start = end
    return tuple(ranges)


def evaluation_windows(
    texts: Sequence[Text],
    tokenizer: Tokenizer,
    *,
    window_count: int,
    window_length: int,
    vocab_size: int,
) -> Tensor:
    """Windows of token ids, int64 [window_count, window_length], none overlapping.

    The stream is the tokens of all texts, joined by the tokens of a blank line; window i starts
    at i / window_count of it, so that the windows are spread evenly.
    """
    gap = token_ids("\n\n", tokenizer, vocab_size=vocab_size, field=_EVALUATION)
    parts: list[TokenIds] = []
    for i, text in enumerate(texts):
        field = f"{_EVALUATION}: text {i + 1}"
        ids = token_ids(text, tokenizer, vocab_size=vocab_size, field=field)
        parts += [gap, ids] if parts else [ids]
    stream = np.concatenate(parts)
    if len(stream) < window_count * window_length:
        rule = f"{window_count} windows of {window_length} need that many tokens in all"
        raise InvalidInput(_EVALUATION, f"{len(stream)} tokens", rule)
    starts = [i * len(stream) // window_count for i in range(window_count)]
    windows = np.stack([stream[start : start + window_length] for start in starts])
    return torch.from_numpy(windows.astype(np.int64))


@dataclass(slots=True)
class _Tally:
    dropped_short: int = 0
    truncated: int = 0
    tokens_truncated: int = 0
    tokens_dropped: int = 0

    def too_short(self, num_texts: int, rule: str) -> InvalidInput:
        shown = f"{num_texts} texts with {self.tokens_dropped} tokens in all"
        return InvalidInput(_CALIBRATION, shown, rule)

    def drop(self, ids: TokenIds) -> None:
        self.dropped_short += 1
        self.tokens_dropped += len(ids)

    def cut(self, num_tokens: int) -> None:
        self.truncated += 1
        self.tokens_truncated += num_tokens

    def counts(self, samples: Sequence[TokenIds], *, requested: int, available: int) -> SampleCount:
        return SampleCount(
            requested=requested,
            available=available,
            used=len(samples),
            dropped_short=self.dropped_short,
            truncated=self.truncated,
            tokens_used=sum(len(sample) for sample in samples),
            tokens_truncated=self.tokens_truncated,
            tokens_dropped=self.tokens_dropped,
        )


def _tokenized(
    texts: Sequence[Text], order: Iterable[int], tokenizer: Tokenizer, vocab_size: int
) -> Iterator[TokenIds]:
    """Token ids of each text, made only when they are asked for."""
    for i in order:
        field = f"{_CALIBRATION}: text {i + 1}"
        yield token_ids(texts[i], tokenizer, vocab_size=vocab_size, field=field)


def _separate(
    tokenized: Iterable[TokenIds], sample_count: int, length: int, min_tokens: int
) -> tuple[list[TokenIds], _Tally]:
    samples: list[TokenIds] = []
    tally = _Tally()
    for ids in tokenized:
        if len(ids) < min_tokens:
            tally.drop(ids)
            continue
        samples.append(ids[:length])
        if len(ids) > length:
            tally.cut(len(ids) - length)
        if len(samples) == sample_count:
            break
    return samples, tally


def _windows(
    tokenized: Iterable[TokenIds], sample_count: int, length: int, min_tokens: int
) -> tuple[list[TokenIds], _Tally]:
    """Full windows; the text that fills the last one is cut, an unfilled rest is dropped."""
    windows: list[TokenIds] = []
    rest = np.empty(0, dtype=np.int32)
    tally = _Tally()
    for ids in tokenized:
        if len(ids) < min_tokens:
            tally.drop(ids)
            continue
        rest = np.concatenate([rest, ids])
        while len(rest) >= length and len(windows) < sample_count:
            windows.append(rest[:length])
            rest = rest[length:]
        if len(windows) == sample_count:
            if len(rest):
                tally.cut(len(rest))
            return windows, tally
    tally.tokens_dropped += len(rest)
    return windows, tally


def _micro_batches(lengths: Sequence[int], batch_size: int) -> tuple[MicroBatch, ...]:
    def batches() -> Iterator[MicroBatch]:
        for start in range(0, len(lengths), batch_size):
            end = min(start + batch_size, len(lengths))
            yield MicroBatch(samples=tuple(range(start, end)), lengths=tuple(lengths[start:end]))

    return tuple(batches())


def _digest(samples: Sequence[TokenIds], micro_batches: Iterable[MicroBatch]) -> str:
    total = hashlib.sha256()
    for batch in micro_batches:
        total.update(np.asarray([len(batch.samples), *batch.lengths], dtype="<i8").tobytes())
        for index in batch.samples:
            total.update(samples[index].astype("<i4").tobytes())
    return total.hexdigest()


def _least_limit(leaf_tokens: Sequence[int], world_size: int) -> int:
    low, high = max(leaf_tokens, default=0), sum(leaf_tokens)
    while low < high:
        middle = (low + high) // 2
        if _ranks_needed(leaf_tokens, middle) <= world_size:
            high = middle
        else:
            low = middle + 1
    return low


def _ranks_needed(leaf_tokens: Sequence[int], limit: int) -> int:
    ranks, load = 1, 0
    for tokens in leaf_tokens:
        if load + tokens > limit:
            ranks, load = ranks + 1, 0
        load += tokens
    return ranks
