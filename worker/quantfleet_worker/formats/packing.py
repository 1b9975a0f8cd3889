"""Integer codes packed into int32 words, as the pack-quantized layout of compressed-tensors has it.

Called by the compressed-tensors format only. A code q of b bits is stored as the unsigned number
q + 2^(b-1); the codes of a row form one little-endian bit stream whose first code lies in the
lowest bits of the first word. Unused bits at the end of a row are zero.
"""

import sys

import torch
from torch import Tensor

assert sys.byteorder == "little", "words are assembled by reinterpreting bytes"


def num_words(num_codes: int, bits: int) -> int:
    """How many int32 words a row of `num_codes` codes takes."""
    return (num_codes * bits + 31) // 32


def pack_rows(codes: Tensor, bits: int) -> Tensor:
    """int8 [R, C] -> int32 [R, ceil(C * bits / 32)]; bits is 4 or 8."""
    R, C = codes.shape
    per_word = 32 // bits
    unsigned = (codes.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)
    padded = torch.zeros(R, num_words(C, bits) * per_word, dtype=torch.uint8, device=codes.device)
    padded[:, :C] = unsigned
    if bits == 4:
        padded = padded[:, 0::2] | (padded[:, 1::2] << 4)
    return padded.contiguous().view(torch.int32)


def unpack_rows(words: Tensor, bits: int, num_codes: int) -> Tensor:
    """The inverse of `pack_rows`: int32 [R, W] -> int8 [R, num_codes]."""
    stream = words.contiguous().view(torch.uint8)
    if bits == 4:
        stream = torch.stack((stream & 0xF, stream >> 4), dim=-1).flatten(1)
    signed = stream[:, :num_codes].to(torch.int16) - (1 << (bits - 1))
    return signed.to(torch.int8)


def pack_columns(codes: Tensor, bits: int) -> Tensor:
    """int8 [R, C] -> int32 [ceil(R * bits / 32), C]: the stream runs down each column."""
    return pack_rows(codes.T, bits).T.contiguous()


def unpack_columns(words: Tensor, bits: int, num_codes: int) -> Tensor:
    """The inverse of `pack_columns`: int32 [W, C] -> int8 [num_codes, C]."""
    return unpack_rows(words.T, bits, num_codes).T.contiguous()
