import hashlib
import io
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_api.plan import FilePlan, TensorMeta
from quantfleet_worker.formats.safetensors_file import (
    file_size,
    header_order,
    index_json,
    num_bytes,
    split_into_files,
    write,
)
from quantfleet_worker.schemes import TORCH_DTYPES

NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def meta_of(name: str, tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(name=name, dtype=NAMES[tensor.dtype], shape=tuple(tensor.shape))


def plan_of(tensors: dict[str, torch.Tensor], name: str = "x.safetensors") -> FilePlan:
    return FilePlan(name=name, tensors=header_order([meta_of(n, t) for n, t in tensors.items()]))


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
tensor_dicts = st.dictionaries(
    st.text("ab._", min_size=1, max_size=6),
    st.builds(
        lambda shape, dtype: torch.arange(torch.Size(shape).numel()).to(dtype).reshape(shape),
        shapes,
        st.sampled_from(list(TORCH_DTYPES.values())),
    ),
    max_size=8,
)


@given(tensor_dicts)
def test_bytes_equal_those_of_the_library(tensors: dict[str, torch.Tensor]) -> None:
    file, out = plan_of(tensors), io.BytesIO()

    sha256, size = write(out, file, tensors)

    expected = safetensors.torch.save(tensors, metadata={"format": "pt"})
    assert out.getvalue() == expected
    assert (sha256, size) == (hashlib.sha256(expected).hexdigest(), len(expected))
    assert file_size(file) == size


def test_a_transposed_tensor_is_written_in_its_own_order() -> None:
    tensors = {"x": torch.arange(6.0).reshape(2, 3).T}
    out = io.BytesIO()

    write(out, plan_of(tensors), tensors)

    assert torch.equal(safetensors.torch.load(out.getvalue())["x"], tensors["x"])


def test_a_tensor_that_is_not_as_planned_is_not_written() -> None:
    out = io.BytesIO()

    with pytest.raises(AssertionError, match=r"x is .*float16.*planned as .*float32"):
        write(out, plan_of({"x": torch.zeros(2)}), {"x": torch.zeros(2, dtype=torch.float16)})

    assert out.getvalue() == b""


def test_an_order_that_would_misalign_a_tensor_is_refused() -> None:
    tensors = {"a": torch.zeros(3, dtype=torch.int8), "b": torch.zeros(1)}
    unordered = FilePlan(name="x", tensors=tuple(meta_of(n, t) for n, t in tensors.items()))

    with pytest.raises(AssertionError, match="header order"):
        write(io.BytesIO(), unordered, tensors)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 12))
def test_files_keep_order_and_limit(sizes: list[int], limit: int) -> None:
    tensors = [TensorMeta(name=f"t{i:02d}", dtype="I8", shape=(n,)) for i, n in enumerate(sizes)]

    files = split_into_files(tensors, limit)

    assert [tensor for file in files for tensor in file] == tensors
    for i, file in enumerate(files):
        assert len(file) == 1 or sum(map(num_bytes, file)) <= limit
        if i:  # the next tensor did not fit
            assert sum(map(num_bytes, files[i - 1])) + num_bytes(file[0]) > limit


def test_index_names_the_file_of_every_tensor() -> None:
    first = plan_of({"b": torch.zeros(2), "a": torch.zeros(3)}, "one.safetensors")
    second = plan_of({"c": torch.zeros(4, dtype=torch.int8)}, "two.safetensors")

    assert json.loads(index_json([first, second])) == {
        "metadata": {"total_size": 24},
        "weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"},
    }


def test_a_written_file_opens_lazily(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(5, dtype=torch.int8), "b": torch.arange(3.0)}
    with (tmp_path / "x.safetensors").open("wb") as out:
        write(out, plan_of(tensors), tensors)

    with safetensors.safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert torch.equal(file.get_tensor("b"), tensors["b"])
