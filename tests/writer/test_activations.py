"""Checkpoints of activations: what any number of ranks wrote, any number reads, or says why not."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantfleet_api.errors import InputUnreadable
from quantfleet_worker.activations import checksum, read_activations, write_activations
from quantfleet_worker.work_folder import WorkFolder, begin_attempt, work_path


def fresh(output: Path) -> WorkFolder:
    work_path(output).mkdir()
    return begin_attempt(output)


def carry_of(count: int, dtype: torch.dtype) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return {
        index: torch.randn(1, 2 + index % 3, 5, generator=generator).to(dtype)
        for index in range(count)
    }


def ranges(bounds: list[int], count: int) -> list[range]:
    edges = [0, *sorted(bounds), count]
    return [range(start, stop) for start, stop in itertools.pairwise(edges)]


@given(
    st.integers(1, 9),
    st.lists(st.integers(0, 9), max_size=4),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40, deadline=None)
def test_any_split_reads_what_any_split_wrote(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    written: list[int],
    read: list[int],
    dtype: torch.dtype,
) -> None:
    folder = fresh(tmp_path_factory.mktemp("work") / "result")
    carry = carry_of(count, dtype)
    files: dict[str, int] = {}
    for own in ranges([min(bound, count) for bound in written], count):
        files |= write_activations(folder, 3, carry, own)
    found: dict[int, torch.Tensor] = {}
    for own in ranges([min(bound, count) for bound in read], count):
        found |= read_activations(folder, 3, files, own)
    assert sorted(found) == list(range(count))
    assert all(torch.equal(found[index], carry[index]) for index in carry)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_changed_byte_is_found(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = fresh(tmp_path / "result")
    carry = carry_of(4, dtype)
    files = write_activations(folder, 1, carry, range(4))
    path = folder.carry(1, range(4))
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    for place in range(header, len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        with pytest.raises(InputUnreadable, match="content is not what was written"):
            read_activations(folder, 1, files, range(4))
    path.write_bytes(good[:-1])
    with pytest.raises(InputUnreadable, match="bytes"):
        read_activations(folder, 1, files, range(4))
    path.unlink()
    with pytest.raises(InputUnreadable, match="bytes"):
        read_activations(folder, 1, files, range(4))


def test_checksum_knows_tensors_that_changed_places() -> None:
    tensor = torch.arange(6.0)
    assert checksum(tensor, 1) != checksum(tensor, 2)
    assert checksum(tensor, 1) == checksum(tensor.clone(), 1)
