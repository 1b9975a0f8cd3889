import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_worker.formats.packing import (
    num_words,
    pack_columns,
    pack_rows,
    unpack_columns,
    unpack_rows,
)

sizes = st.integers(1, 70)
bit_counts = st.sampled_from([4, 8])


def random_codes(rows: int, columns: int, bits: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    limit = 2 ** (bits - 1)
    return torch.randint(-limit, limit, (rows, columns), generator=generator, dtype=torch.int8)


@given(sizes, sizes, bit_counts, st.integers(0, 2**31))
def test_unpacked_rows_are_what_was_packed(rows: int, columns: int, bits: int, seed: int) -> None:
    codes = random_codes(rows, columns, bits, seed)

    words = pack_rows(codes, bits)

    assert words.shape == (rows, num_words(columns, bits))
    assert torch.equal(unpack_rows(words, bits, columns), codes)


@given(sizes, sizes, bit_counts, st.integers(0, 2**31))
def test_unpacked_columns_are_what_was_packed(
    rows: int, columns: int, bits: int, seed: int
) -> None:
    codes = random_codes(rows, columns, bits, seed)

    words = pack_columns(codes, bits)

    assert words.shape == (num_words(rows, bits), columns)
    assert torch.equal(unpack_columns(words, bits, rows), codes)


@given(sizes, sizes, bit_counts, st.integers(0, 2**31))
def test_words_equal_those_of_the_library_that_loads_them(
    rows: int, columns: int, bits: int, seed: int
) -> None:
    codes = random_codes(rows, columns, bits, seed)

    assert torch.equal(pack_rows(codes, bits), pack_to_int32(codes, bits))
    assert torch.equal(pack_columns(codes, bits), pack_to_int32(codes, bits, packed_dim=0))


def test_the_first_code_lies_in_the_lowest_bits() -> None:
    assert pack_rows(torch.tensor([[-7, -8, -8, -8, -8, -8, -8, -8]], dtype=torch.int8), 4) == 1
    assert pack_rows(torch.tensor([[-128, -127]], dtype=torch.int8), 8) == 1 << 8
