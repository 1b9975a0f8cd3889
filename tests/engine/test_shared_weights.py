"""Weights that the ranks of a pod share: read once, private when changed, gone with the pod."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from quantfleet_api.errors import InvalidInput, TryAgain
from quantfleet_worker.headers import read_header
from quantfleet_worker.local_store import LocalStore
from quantfleet_worker.pod_memory import PodReader, layout, split
from quantfleet_worker.reading import ALIGNMENT, Reader

TENSORS = {
    "a": torch.arange(3000.0).reshape(30, 100),
    "b": torch.ones(7, dtype=torch.bfloat16),
    "c": torch.full((500,), 3.0),
    "empty": torch.empty(0, 4),
    "d": torch.tensor([True, False]),
}


class Meeting:
    """The records of a gang whose ranks are threads of this process."""

    def __init__(self, rank: int, store: LocalStore, changed: threading.Condition) -> None:
        self.rank, self._store, self._changed = rank, store, changed

    def put(self, key: str, value: str) -> None:
        with self._changed:
            self._store.set(key, value)
            self._changed.notify_all()

    def get(self, key: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: self._store.check([key]), 60)
            return self._store.get(key).decode()

    def tick(self, key: str) -> int:
        return self._store.add(f"count/{key}", 1)


def readers(
    folder: Path,
    ranks: int,
    *,
    pods: int = 1,
    tensors: Any = TENSORS,
    twice: Any = (),
    **options: Any,
) -> list[PodReader]:
    path = folder / "m.safetensors"
    save_file(tensors, path)
    _, metas = read_header(folder, path.name, field="f")
    store, changed = LocalStore(), threading.Condition()
    return [
        PodReader(
            Reader(folder, {meta.name: meta for meta in metas}, **options),
            Meeting(rank, store, changed),  # type: ignore[arg-type]
            range(rank - rank % ranks, rank - rank % ranks + ranks),
            name="weights",
            twice=twice,
        )
        for rank in range(pods * ranks)
    ]


def together(pod: list[PodReader], names: list[str]) -> list[Any]:
    """What each rank gets for a set: tensors, or the error."""
    found: list[Any] = [None] * len(pod)

    def read(rank: int) -> None:
        try:
            found[rank] = pod[rank].read(names)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(len(pod))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_each_byte_is_read_once_and_all_ranks_have_it(tmp_path: Path, ranks: int) -> None:
    pod = readers(tmp_path, ranks)
    for names in (["a", "d"], ["empty", "c", "b"], ["b"]):
        for found in together(pod, names):
            assert list(found) == names
            for name in names:
                assert found[name].dtype == TENSORS[name].dtype
                assert torch.equal(found[name], TENSORS[name])
                assert found[name].data_ptr() % ALIGNMENT == 0
    read = sum(reader._reader.bytes_read for reader in pod)
    once = sum(TENSORS[name].nbytes for name in ("a", "d", "empty", "c", "b", "b"))
    assert read == once


def test_what_one_rank_changes_no_other_sees_and_memory_outlives_its_file(tmp_path: Path) -> None:
    pod = readers(tmp_path, 2)
    first, second = together(pod, ["a", "c"])
    for name in ("a", "c"):
        first[name] += 1
    for reader in pod:
        reader.close()
    (tmp_path / "m.safetensors").write_bytes(b"")
    assert all(torch.equal(second[name], TENSORS[name]) for name in ("a", "c"))
    assert all(torch.equal(first[name], TENSORS[name] + 1) for name in ("a", "c"))


def test_nothing_is_left_open_behind_the_last_set(tmp_path: Path) -> None:
    before = len(shared_files())  # of other tests' readers
    pod = readers(tmp_path, 2)
    for name in ("a", "b", "c"):
        together(pod, [name])
        assert len(shared_files()) <= before + len(pod), "of the last set only"
    for reader in pod:
        reader.close()
    assert len(shared_files()) == before


def shared_files() -> list[str]:
    links = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    return [link for link in links if "quantfleet-weights" in link]


def test_weights_are_checked_and_hashed_by_who_reads_them(tmp_path: Path) -> None:
    pod = readers(tmp_path, 2, check_finite=True, hashed=set(TENSORS))
    together(pod, ["a", "b", "c"])
    hashed = [set(reader._reader.hashes) for reader in pod]
    assert hashed[0] | hashed[1] == {"a", "b", "c"}
    assert not hashed[0] & hashed[1]


def test_pods_of_a_gang_do_not_count_for_each_other(tmp_path: Path) -> None:
    first, second, *other_pod = readers(tmp_path, 2, pods=2)
    together(other_pod, ["a", "c"])
    read = threading.Thread(target=first.read, args=(["a", "c"],))
    read.start()
    with first._exchange._changed:  # type: ignore[attr-defined]
        told = first._exchange._changed.wait_for(  # type: ignore[attr-defined]
            lambda: first._exchange._store.check(["weights-0/1/0"]), 60
        )
    assert told
    assert not first._exchange._store.check(["weights-0/1/all"]), "its peer has not mapped it"
    assert first._exchange._store.check(["weights-2/1/all"])
    second.read(["a", "c"])
    read.join(60)
    assert first._exchange._store.check(["weights-0/1/all"])


def test_a_weight_that_is_not_finite_is_refused_by_who_reads_it(tmp_path: Path) -> None:
    broken = TENSORS | {"c": torch.full((500,), float("nan"))}
    pod = readers(tmp_path, 2, tensors=broken, check_finite=True)
    owner = next(rank for rank in (0, 1) if "c" in split({"c": 1}, 2, first=1)[rank])
    with pytest.raises(InvalidInput, match="must be finite"):
        pod[owner].read(["c"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_needed_twice_is_kept_and_read_once(tmp_path: Path, ranks: int) -> None:
    pod = readers(tmp_path, ranks, twice={"a"})
    for names in (["a"], ["b", "c"], ["d", "a"]):
        for found in together(pod, names):
            assert list(found) == names
            assert all(torch.equal(found[name], TENSORS[name]) for name in names)
    read = sum(reader._reader.bytes_read for reader in pod)
    assert read == sum(TENSORS[name].nbytes for name in "abcd")
    assert all(not reader._kept for reader in pod)


def test_memory_of_a_rank_that_is_gone_is_try_again(tmp_path: Path) -> None:
    pod = readers(tmp_path, 2)
    store = pod[0]._exchange
    shares = split({"a": TENSORS["a"].nbytes}, 2, first=1)
    reader = next(rank for rank in (0, 1) if shares[rank])
    store.put(f"weights-0/1/{reader}", '{"process": 1073741824, "file": 3, "inode": 1}')
    with pytest.raises(TryAgain, match=f"rank {reader}"):
        pod[1 - reader].read(["a"])


def test_shares_are_even_and_the_turn_goes_round() -> None:
    sizes = {"big": 100, "m1": 50, "m2": 50, "s": 1}
    loads = [sum(sizes[name] for name in share) for share in split(sizes, 2, first=1)]
    assert sorted(loads) == [100, 101]
    owners = [split({"only": 9}, 3, first=n).index(["only"]) for n in range(4)]
    assert owners == [0, 1, 2, 0]


def test_a_share_is_laid_out_on_aligned_places(tmp_path: Path) -> None:
    tensors = readers(tmp_path, 1)[0]._reader.tensors
    offsets, end = layout(["b", "d", "c"], tensors)
    assert offsets == {"b": 0, "d": 64, "c": 128}
    assert end == 128 + 2048
