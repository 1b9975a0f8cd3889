"""Byte ranges give the library's tensors bit for bit, in memory of our own; nothing fails late."""

import hashlib
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from quantfleet_api.errors import InputUnreadable, InvalidInput
from quantfleet_worker import reading
from quantfleet_worker.headers import read_header
from quantfleet_worker.reading import Prefetcher, Reader
from quantfleet_worker.schemes import TORCH_DTYPES


def reader_of(path: Path, **options: object) -> Reader:
    _, tensors = read_header(path.parent, path.name, field="f")
    return Reader(path.parent, {t.name: t for t in tensors}, **options)  # type: ignore[arg-type]


def raw_bytes(tensor: Tensor) -> bytes:
    """Bits, so that NaN equals itself."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = TORCH_DTYPES[draw(st.sampled_from(sorted(TORCH_DTYPES)))]
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    size = torch.empty(shape, dtype=dtype).nbytes
    bits = draw(st.binary(min_size=size, max_size=size))
    if dtype == torch.bool:
        bits = bytes(value % 2 for value in bits)
    flat = torch.frombuffer(bytearray(bits), dtype=torch.uint8) if size else torch.empty(0)
    return flat.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


@given(st.dictionaries(st.text("abc.", min_size=1), tensors(), min_size=1, max_size=5), st.data())
def test_any_tensors_are_read_as_the_library_reads_them(
    tmp_path_factory: pytest.TempPathFactory, saved: dict[str, Tensor], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    save_file(saved, path)
    names = data.draw(st.lists(st.sampled_from(sorted(saved)), unique=True))
    expected = load_file(path)
    with reader_of(path) as reader:
        found = reader.read(names)
    assert list(found) == names
    for name in names:
        assert found[name].dtype == expected[name].dtype
        assert found[name].shape == expected[name].shape
        assert raw_bytes(found[name]) == raw_bytes(expected[name])
        assert found[name].data_ptr() % 64 == 0
    assert reader.bytes_read == sum(saved[name].nbytes for name in names)


def test_a_tensor_larger_than_one_system_call_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_READ_BYTES", 1000)
    saved = {"a": torch.randn(7, 193), "b": torch.randn(3)}
    save_file(saved, tmp_path / "m.safetensors")
    with reader_of(tmp_path / "m.safetensors") as reader:
        found = reader.read(["b", "a"])
    assert torch.equal(found["a"], saved["a"])
    assert torch.equal(found["b"], saved["b"])


def test_what_is_read_survives_the_file_and_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.arange(4.0)}, path)
    with reader_of(path) as reader:
        first, second = (reader.read(["a"])["a"] for _ in range(2))
    path.write_bytes(bytes(path.stat().st_size))
    first += 1
    assert first.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert second.tolist() == [0.0, 1.0, 2.0, 3.0]


BAD_VALUES = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", BAD_VALUES, ids=str)
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    bad = torch.zeros(9, 9, dtype=dtype)
    bad[3, 4] = value
    bad[8, 8] = value
    save_file({"good": torch.ones(4, dtype=dtype), "bad": bad}, tmp_path / "m.safetensors")
    with reader_of(tmp_path / "m.safetensors", check_finite=True) as reader:
        reader.read(["good"])
        with pytest.raises(InvalidInput, match=r"m\.safetensors: bad: weights must be finite") as e:
            reader.read(["good", "bad"])
    assert "2 that are not" in str(e.value)
    with reader_of(tmp_path / "m.safetensors") as unchecked:
        assert not torch.isfinite(unchecked.read(["bad"])["bad"]).all()


def test_the_largest_finite_values_integers_and_empty_tensors_pass_the_check(
    tmp_path: Path,
) -> None:
    saved = {
        "big": torch.tensor([torch.finfo(torch.bfloat16).max], dtype=torch.bfloat16),
        "ids": torch.tensor([2**62]),
        "empty": torch.empty(0, 3),
    }
    save_file(saved, tmp_path / "m.safetensors")
    with reader_of(tmp_path / "m.safetensors", check_finite=True) as reader:
        assert torch.equal(reader.read(saved)["big"], saved["big"])


def test_content_is_hashed_and_must_not_change(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.arange(4.0), "b": torch.ones(2)}, path)
    with reader_of(path, hashed={"a", "b"}) as reader:
        reader.read(["a"])
        first = dict(reader.hashes)
        reader.read(["a", "b"])
    assert first == {"a": hashlib.sha256(raw_bytes(torch.arange(4.0))).hexdigest()}
    assert reader.hashes.keys() == {"a", "b"}
    save_file({"a": torch.arange(4.0), "b": torch.zeros(2)}, path)
    with reader_of(path, hashed={"a", "b"}, known_hashes=reader.hashes) as later:
        later.read(["a"])
        with pytest.raises(InvalidInput, match=r"m\.safetensors: b: content must stay"):
            later.read(["b"])


def test_a_file_that_was_cut_or_removed_since_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.arange(400.0)}, path)
    reader = reader_of(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)
    with pytest.raises(InputUnreadable, match=r"m\.safetensors: a: the file ends 8 bytes early"):
        reader.read(["a"])
    reader.close()
    path.unlink()
    with pytest.raises(InputUnreadable, match=r"m\.safetensors: a: No such file"):
        reader.read(["a"])


@pytest.mark.parametrize("length", range(0, 24, 5))
def test_a_file_cut_at_any_byte_of_a_tensor_is_never_read_as_whole(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(6)}, path)
    with reader_of(path) as reader:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 24 + length)
        with pytest.raises(InputUnreadable, match=f"ends {24 - length} bytes early"):
            reader.read(["a"])


def test_the_prefetcher_gives_each_set_in_turn_and_counts_it(tmp_path: Path) -> None:
    saved = {name: torch.full((3,), float(i)) for i, name in enumerate("abcd")}
    save_file(saved, tmp_path / "m.safetensors")
    reader = reader_of(tmp_path / "m.safetensors")
    prefetcher = Prefetcher(reader)
    prefetcher.start(["a", "b"])
    first = prefetcher.take()
    prefetcher.start(["d"])
    second = prefetcher.take()
    prefetcher.close()
    assert {name: tensor[0].item() for name, tensor in first.items()} == {"a": 0.0, "b": 1.0}
    assert {name: tensor[0].item() for name, tensor in second.items()} == {"d": 3.0}
    assert reader.bytes_read == 36
    reader.close()


def test_the_prefetcher_reads_in_another_thread_while_the_caller_works(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "m.safetensors")
    inner = reader_of(tmp_path / "m.safetensors")
    may_read, seen = threading.Event(), []

    class Slow:
        def read(self, names: tuple[str, ...]) -> dict[str, Tensor]:
            assert may_read.wait(timeout=30)
            seen.append(threading.current_thread())
            return inner.read(names)

    prefetcher = Prefetcher(Slow())  # type: ignore[arg-type]
    prefetcher.start(["a"])
    assert seen == []
    may_read.set()
    assert prefetcher.take()["a"].tolist() == [1.0, 1.0, 1.0]
    assert seen != [threading.current_thread()]
    inner.close()


def test_an_error_of_the_background_read_surfaces_on_take_and_the_next_set_still_works(
    tmp_path: Path,
) -> None:
    saved = {"a": torch.tensor([float("nan")]), "b": torch.ones(1)}
    save_file(saved, tmp_path / "m.safetensors")
    with reader_of(tmp_path / "m.safetensors", check_finite=True) as reader:
        prefetcher = Prefetcher(reader)
        prefetcher.start(["a"])
        with pytest.raises(InvalidInput, match="weights must be finite"):
            prefetcher.take()
        prefetcher.start(["b"])
        assert prefetcher.take()["b"].item() == 1.0
        prefetcher.close()


def test_closing_joins_the_thread_and_drops_what_it_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "m.safetensors")
    with reader_of(tmp_path / "m.safetensors") as reader:
        before = threading.active_count()
        prefetcher = Prefetcher(reader)
        prefetcher.start(["a"])
        prefetcher.close()
        assert threading.active_count() == before
        with pytest.raises(AssertionError, match="nothing was started"):
            prefetcher.take()
