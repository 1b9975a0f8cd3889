"""How statistics become bytes for the wire: a header of int64 counts, then tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pack(counts: Sequence[int], tensors: Sequence[Tensor]) -> Tensor:
    """uint8 [8 * len(counts) + bytes of all tensors]."""
    header = torch.tensor(list(counts), dtype=torch.int64).view(torch.uint8)
    return torch.cat([header, *(as_bytes(tensor) for tensor in tensors)])


def unpack_counts(packed: Tensor, num_counts: int) -> tuple[list[int], Tensor]:
    """The header's counts and what follows it."""
    header, rest = packed[: 8 * num_counts], packed[8 * num_counts :]
    return [int(count) for count in header.clone().view(torch.int64)], rest


def as_bytes(tensor: Tensor) -> Tensor:
    """uint8 view of a tensor's values (of a copy, where they do not lie in one run)."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def from_bytes(packed: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A tensor of its own from exactly its bytes."""
    return packed.clone().view(dtype).reshape(list(shape))
