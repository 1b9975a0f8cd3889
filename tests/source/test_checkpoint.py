"""Opening a folder finds every tensor where the safetensors library finds it, or says why not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from quantfleet_api.errors import InputUnreadable, InvalidInput
from quantfleet_worker.headers import read_header
from quantfleet_worker.source import INDEX, Checkpoint
from tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.utils.logging.disable_progress_bar()
    return make_tiny_model(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.utils.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("split")
    return make_tiny_model(folder, dtype=torch.bfloat16, shard_bytes=60_000)


@pytest.fixture
def single_copy(single: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(single, tmp_path / "model"))


@pytest.fixture
def split_copy(split: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(split, tmp_path / "model"))


@pytest.mark.parametrize("kind", ["single", "split"])
def test_names_shapes_and_dtypes_are_those_of_the_library(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    checkpoint = Checkpoint.open(folder)
    expected = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                part = file.get_slice(name)
                expected[name] = (path.name, part.get_dtype(), tuple(part.get_shape()))
    found = {t.name: (t.file, t.dtype, t.shape) for t in checkpoint.tensors.values()}
    assert found == expected
    assert checkpoint.config["architectures"] == ["LlamaForCausalLM"]
    assert len(checkpoint.weight_files) == len(list(folder.glob("*.safetensors")))
    assert (len(checkpoint.weight_files) > 1) == (kind == "split")


def test_side_files_are_what_belongs_to_the_model_and_nothing_else(single_copy: Path) -> None:
    (single_copy / "additional_chat_templates").mkdir()
    (single_copy / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")
    (single_copy / "README.md").write_text("about")
    (single_copy / "training_args.json").write_text("{}")
    assert Checkpoint.open(single_copy).side_files == (
        "LICENSE",
        "additional_chat_templates/rag.jinja",
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    )


def test_the_digest_is_of_everything_but_weights(split_copy: Path) -> None:
    digest = Checkpoint.open(split_copy).digest
    shard = sorted(split_copy.glob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert Checkpoint.open(split_copy).digest == digest
    for name in ("config.json", "tokenizer.json", "generation_config.json", INDEX):
        path = split_copy / name
        original = path.read_bytes()
        path.write_bytes(original + b"\n")
        assert Checkpoint.open(split_copy).digest != digest, name
        path.write_bytes(original)
    tensors = load_file(shard)
    save_file(tensors, shard, metadata={"format": "np"})
    assert Checkpoint.open(split_copy).digest != digest


def _remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _consolidated(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Rewrites the header of the single file; the data stays."""

    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        entries = json.loads(data[8:end])
        change(entries)
        raw = json.dumps(entries).encode()
        path.write_bytes(len(raw).to_bytes(8, "little") + raw + data[end:])

    return apply


def _repeat_key(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    raw = data[8:end].replace(b'"model.norm.weight"', b'"lm_head.weight"')
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data[end:])


NORM = "model.norm.weight"
SINGLE_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no-folder": (shutil.rmtree, "must be an existing folder"),
    "no-config": (_remove("config.json"), "the folder must hold a config.json"),
    "config-not-utf8": (
        _write("config.json", b'{"a": "\xff"}'),
        "config.json: must be UTF-8, got 'byte 0xff at offset 7'",
    ),
    "config-not-json": (_write("config.json", b"{'a': 1}"), "config.json: must be valid JSON"),
    "config-too-deep": (_write("config.json", b"[" * 100_000), "config.json: must be valid JSON"),
    "config-not-object": (_write("config.json", b"[1]"), "config.json: must be a JSON object"),
    "config-key-twice": (
        _write("config.json", b'{"a": 1, "a": 2}'),
        "config.json: a JSON key must not come twice, got 'a'",
    ),
    "no-weights": (_remove("model.safetensors"), "weights must be safetensors"),
    "pickled": (_pickled, "weights must be safetensors"),
    "pickled-named": (_pickled, "got 'pytorch_model.bin'"),
    "other-name": (_consolidated, "got 'consolidated.safetensors'"),
    "both": (_write(INDEX, b'{"weight_map": {}}'), f"model.safetensors or {INDEX}, not both"),
    "empty-file": (_write("model.safetensors", b""), "must be a whole safetensors file"),
    "garbage": (_write("model.safetensors", b"\x80\x02}q" * 50), "must be a whole safetensors"),
    "header-not-json": (
        _write("model.safetensors", (4).to_bytes(8, "little") + b"{abc"),
        "model.safetensors: must be valid JSON",
    ),
    "header-not-utf8": (
        _write("model.safetensors", (4).to_bytes(8, "little") + b'{"\xfe"'),
        "model.safetensors: must be UTF-8",
    ),
    "header-key-twice": (_repeat_key, "a JSON key must not come twice"),
    "dtype": (
        _header(lambda entries: entries[NORM].update(dtype="F8_E4M3")),
        f"{NORM}: dtype must be one of BF16, BOOL, F16, F32",
    ),
    "shape-size": (
        _header(lambda entries: entries[NORM].update(shape=[63])),
        f"{NORM}: must be F32 of shape [63], got '256 bytes'",
    ),
    "shape-kind": (
        _header(lambda entries: entries[NORM].update(shape=[64.0])),
        f"{NORM}: shape must be a list of sizes",
    ),
    "shape-negative": (
        _header(lambda entries: entries[NORM].update(shape=[-8, -8])),
        f"{NORM}: shape must be a list of sizes",
    ),
    "offsets": (
        _header(lambda entries: entries[NORM].update(data_offsets=[0])),
        f"{NORM}: data_offsets must be two offsets",
    ),
    "member": (
        _header(lambda entries: entries[NORM].pop("dtype")),
        f"{NORM}: must have exactly dtype, shape and data_offsets",
    ),
    "overlap": (
        _header(lambda entries: entries[NORM].update(data_offsets=[0, 256])),
        "where the tensor before it ends",
    ),
    "hole": (_header(lambda entries: entries.pop(NORM)), "must have the"),
}


@pytest.mark.parametrize("case", SINGLE_FAULTS)
def test_a_broken_folder_is_refused_and_says_what_is_wrong(single_copy: Path, case: str) -> None:
    spoil, message = SINGLE_FAULTS[case]
    spoil(single_copy)
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(single_copy)
    assert message in str(caught.value)
    assert str(caught.value).startswith("spec.model.source")


def _index(change: Callable[[dict[str, str], list[str]], object]) -> Callable[[Path], None]:
    """Rewrites weight_map; `change` gets it and the names of the shards."""

    def apply(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        mapped = index["weight_map"]
        change(mapped, sorted(set(mapped.values())))
        (folder / INDEX).write_text(json.dumps(index))

    return apply


def _first_shard_missing(folder: Path) -> None:
    sorted(folder.glob("*.safetensors"))[0].unlink()


def _twice(folder: Path) -> None:
    """The norm, which lies in one shard, is put into another one as well."""
    mapped = json.loads((folder / INDEX).read_text())["weight_map"]
    other = folder / next(name for name in sorted(mapped.values()) if name != mapped[NORM])
    save_file({**load_file(other), NORM: torch.zeros(64, dtype=torch.bfloat16)}, other)


def _moved(mapped: dict[str, str], shards: list[str]) -> None:
    mapped[NORM] = next(name for name in shards if name != mapped[NORM])


SPLIT_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing-shard": (
        _first_shard_missing,
        "safetensors: must exist, got 'no such file'",
    ),
    "in-index-only": (
        _index(lambda mapped, shards: mapped.update(ghost=shards[0])),
        "spec.model.source: ghost: must be in model-00001",
    ),
    "in-file-only": (_index(lambda mapped, _: mapped.pop(NORM)), f"must be listed in {INDEX}"),
    "in-another-file": (_index(_moved), f"{NORM}: must be in model-0000"),
    "twice": (_twice, f"{NORM}: must be in one file only"),
    "outside": (
        _index(lambda mapped, _: mapped.update({NORM: "../x.safetensors"})),
        "must be a .safetensors file name",
    ),
    "pickled": (
        _index(lambda mapped, _: mapped.update({NORM: "pytorch_model.bin"})),
        "must be a .safetensors file name",
    ),
    "empty": (_write(INDEX, b'{"weight_map": {}}'), "weight_map: must give the file of each"),
    "no-map": (_write(INDEX, b'{"metadata": {}}'), "weight_map: must give the file of each"),
    "index-not-json": (_write(INDEX, b"{"), f"{INDEX}: must be valid JSON"),
}


@pytest.mark.parametrize("case", SPLIT_FAULTS)
def test_a_broken_index_is_refused_and_says_what_is_wrong(split_copy: Path, case: str) -> None:
    spoil, message = SPLIT_FAULTS[case]
    spoil(split_copy)
    with pytest.raises(InvalidInput) as caught:
        Checkpoint.open(split_copy)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_cannot_be_read_is_named_and_may_be_tried_again(
    single_copy: Path, name: str
) -> None:
    (single_copy / name).unlink()
    (single_copy / name).symlink_to("/proc/self/mem")  # its first page: an I/O error
    with pytest.raises(InputUnreadable, match="Input/output error") as caught:
        Checkpoint.open(single_copy)
    assert name in str(caught.value)


SMALL = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "empty": torch.zeros((0, 4), dtype=torch.bfloat16),
    "scalar": torch.tensor(3, dtype=torch.int64),
    "flag": torch.tensor([True, False, True]),
    "z": torch.ones(5, dtype=torch.int8),
}


def test_a_header_may_list_tensors_in_any_order(tmp_path: Path) -> None:
    def entry(start: int, end: int) -> dict[str, Any]:
        return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}

    entries = {"last": entry(3, 5), "first": entry(0, 3), "empty": entry(3, 3)}
    raw = json.dumps(entries).encode()
    content = len(raw).to_bytes(8, "little") + raw + b"abcde"
    (tmp_path / "m.safetensors").write_bytes(content)
    expected = load_file(tmp_path / "m.safetensors")
    _, tensors = read_header(tmp_path, "m.safetensors", field="f")
    assert [tensor.name for tensor in tensors] == ["first", "empty", "last"]
    for tensor in tensors:
        found = content[tensor.start : tensor.start + tensor.num_bytes]
        assert found == expected[tensor.name].numpy().tobytes()


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    save_file(SMALL, tmp_path / "whole.safetensors")
    data = (tmp_path / "whole.safetensors").read_bytes()
    _, tensors = read_header(tmp_path, "whole.safetensors", field="f")
    assert {t.name for t in tensors} == SMALL.keys()
    for length in range(len(data)):
        (tmp_path / "cut.safetensors").write_bytes(data[:length])
        with pytest.raises(InvalidInput, match=r"^f: cut\.safetensors"):
            read_header(tmp_path, "cut.safetensors", field="f")


@given(st.data())
def test_a_header_is_taken_only_where_the_library_takes_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any byte of length and header changed: never another error, never more lenient."""
    folder = tmp_path_factory.getbasetemp() / "mutated"
    folder.mkdir(exist_ok=True)
    path = folder / "m.safetensors"
    save_file(SMALL, path)
    content = bytearray(path.read_bytes())
    header_end = 8 + int.from_bytes(content[:8], "little")
    position = data.draw(st.integers(0, header_end - 1))
    content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        _, tensors = read_header(folder, "m.safetensors", field="f")
    except InvalidInput:
        return
    with safe_open(path, "pt") as file:
        for tensor in tensors:
            assert tuple(file.get_slice(tensor.name).get_shape()) == tensor.shape
