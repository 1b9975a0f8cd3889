"""Bring back the activations behind what is committed: read the checkpoint, replay the rest.

A layer that is replayed is decoded from the very bytes of its files, so its output is the one that
the first run had (with `Float` propagation the source's layer runs). Nothing is solved again.
"""

from collections.abc import Mapping

from torch import Tensor

from quantfleet_api.errors import InvalidInput
from quantfleet_api.plan import LayerPlan
from quantfleet_worker import layer_passes
from quantfleet_worker.activations import read_activations
from quantfleet_worker.engine import Engine
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.journal import Journal, read_journal
from quantfleet_worker.own_files import read_file
from quantfleet_worker.plan_facts import observes


def restore_carry(engine: Engine, start: int) -> None:
    """Make the carry that layer `start` takes; nothing to do if no later layer is observed."""
    layers = engine.plan.layers
    if start == 0 or not any(observes(layer) for layer in layers[start:]):
        return
    journal = read_journal(engine.folder)
    assert journal is not None, "something is committed"
    _check_files(engine, journal)
    done = 0
    if journal.checkpoint is not None:
        done = journal.checkpoint.layer
        _read_carry(engine, journal)
    else:
        layer_passes.embed(engine, _read_source(engine, layers[0]))
    for layer in layers[done + 1 : start]:
        engine.progress(message=f"replaying {layer.name}")
        source = _read_source(engine, layer)
        if engine.plan.propagation == "Float":
            layer_passes.advance_float(engine, layer, source)
        else:
            tensors, sidecar = read_layer(engine, layer)
            names = {*layer.transformed, *layer.passed_through}
            floats = {name: tensor for name, tensor in tensors.items() if name in names}
            layer_passes.advance_quantized(engine, layer, floats, tensors, sidecar)


def _check_files(engine: Engine, journal: Journal) -> None:
    """Every committed file must still be there, in its size; contents are hashed at the end."""
    records = [record for layer in journal.layers for record in layer.files.items()]
    for name, record in records:
        path = engine.folder.path / name
        size = path.stat().st_size if path.is_file() else -1
        if size != record.num_bytes:
            found = "missing" if size < 0 else f"{size} bytes"
            raise InvalidInput(
                str(path),
                found,
                f"must be the {record.num_bytes} bytes that were committed (--discard-journal "
                "starts over)",
            )


def _read_source(engine: Engine, layer: LayerPlan) -> dict[str, Tensor]:
    with engine.clock.measure("read"):
        return engine.weights.read([tensor.name for tensor in layer.source])


def _read_carry(engine: Engine, journal: Journal) -> None:
    assert journal.checkpoint is not None
    checkpoint, own = journal.checkpoint, engine.layout.micro_batches_of(engine.rank)
    engine.carry.update(read_activations(engine.folder, checkpoint.layer, checkpoint.files, own))


def read_layer(engine: Engine, layer: LayerPlan) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
    """Tensors of a finished layer in the first format, and its sidecar."""
    name = engine.plan.formats[0]
    folder = engine.folder.format_folder(FORMATS[name].folder, several=len(engine.plan.formats) > 1)
    tensors: dict[str, Tensor] = {}
    for file in layer.files[name]:
        tensors |= read_file(folder, file.name)
    path = engine.folder.sidecar(layer.index)
    return tensors, read_file(path.parent, path.name) if path.is_file() else {}
