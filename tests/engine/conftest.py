"""Read-only checkpoints that the tests of the engine share, and a place for each test."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_runs import Place, make_place
from tiny_models import FAMILIES, make_tiny_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the ranks have; other tests of this process may have asked for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`<family>-<dtype>-<tied|untied>`: two layers, several files where tied."""
    root = tmp_path_factory.mktemp("checkpoints")
    found = {}
    for number, family in enumerate(FAMILIES):
        for dtype_name, dtype in DTYPES.items():
            for tied in (True, False):
                name = f"{family}-{dtype_name}-{'tied' if tied else 'untied'}"
                found[name] = make_tiny_model(
                    root / name,
                    family,
                    dtype=dtype,
                    tied=tied,
                    seed=number,
                    shard_bytes=200_000 if tied else None,
                )
    return found


@pytest.fixture
def place(tmp_path: Path, tiny_checkpoints: dict[str, Path]) -> Place:
    """Folders of this test's own, with all tiny checkpoints."""
    return make_place(tmp_path, models=tiny_checkpoints)


@pytest.fixture(scope="session")
def in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A bfloat16 copy of a checkpoint of one file, made once."""
    made: dict[Path, Path] = {}

    def convert(source: Path) -> Path:
        if source not in made:
            folder = tmp_path_factory.mktemp(f"{source.name}-bfloat16")
            for path in source.iterdir():
                if path.suffix != ".safetensors":
                    (folder / path.name).write_bytes(path.read_bytes())
            tensors = load_file(source / "model.safetensors")
            halves = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
            save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
            config = json.loads((folder / "config.json").read_text())
            config.pop("torch_dtype", None)
            config["dtype"] = "bfloat16"
            (folder / "config.json").write_text(json.dumps(config, indent=2))
            made[source] = folder
        return made[source]

    return convert
