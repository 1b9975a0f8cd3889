"""One rank's whole story on one page.

`rank.py` calls `run_rank` in each rank's process; everything is here in the order in which it
happens.
"""

import json
import logging
from time import monotonic
from typing import Any

from quantfleet_api.errors import Interrupted, InvalidInput
from quantfleet_api.plan import Plan
from quantfleet_api.spec import QuantizationJob
from quantfleet_worker import device as devices
from quantfleet_worker import publish, report, verify
from quantfleet_worker.commit import stop_submitting
from quantfleet_worker.control import Control
from quantfleet_worker.data import padded_ids
from quantfleet_worker.engine import Engine
from quantfleet_worker.exchange import Exchange
from quantfleet_worker.handover import Handover, read_handover
from quantfleet_worker.journal import (
    Journal,
    begun_layer,
    check_same_numerics,
    read_journal,
    write_journal,
)
from quantfleet_worker.layer_steps import process_layer
from quantfleet_worker.liveness import Liveness
from quantfleet_worker.meeting import open_meeting, reach_meeting, wait_for_everyone
from quantfleet_worker.messages import RankJob, Rendezvous
from quantfleet_worker.models.layers import Blocks
from quantfleet_worker.models.registry import family_of
from quantfleet_worker.passes import rows_of_micro_batches
from quantfleet_worker.plan_facts import kept_for_head, num_passes
from quantfleet_worker.pod_memory import PodReader
from quantfleet_worker.resume import restore_carry
from quantfleet_worker.schedule import make_layout
from quantfleet_worker.schemes import TORCH_DTYPES
from quantfleet_worker.source import Checkpoint, Prefetcher, Reader
from quantfleet_worker.work_folder import WorkFolder
from quantfleet_worker.writer import Writer

logger = logging.getLogger(__name__)

NO_PASS: dict[str, Any] = {
    "micro_batch": 0,
    "num_micro_batches": 0,
    "pass_index": 0,
    "num_passes": 0,
    "tokens_per_second": 0.0,
    "eta_seconds": None,
}
"""Progress behind the last layer, where no micro-batch runs."""


def run_rank(job: RankJob, control: Control) -> None:
    """Join the gang, do this rank's share of every layer, verify and publish.

    1. Fix the numerics and take the device; meet the other ranks; agree that all compute alike.
    2. Bring back the activations of what is committed.
    3. Process the layers that are left.
    4. Verify what was written, measure, and publish.
    """
    devices.return_freed_memory()
    devices.configure_numerics(job.threads)  # 1
    engine, liveness = _join(job, control)
    started = devices.peak_memory_bytes()
    try:
        start = _agree(engine, job)
        _announce(engine, control, start)
        restore_carry(engine, start)  # 2
        control.pace.total_units = _units(engine, start)
        _process_layers(engine, control, start)  # 3
        control.progress(stage="Verifying", layer=len(engine.plan.layers), message="", **NO_PASS)
        verify.verify_files(engine)  # 4
        perplexities = verify.evaluate(engine)
        report.put_summary(engine, memory_at_start=started)
        if engine.rank == 0:
            control.progress(stage="Publishing")
            publish.publish(engine, perplexities)
    except Interrupted:
        engine.exchange.stop_everyone()
        _leave_together(engine, liveness)
        raise
    control.progress(stage="Done", message="")
    _leave_together(engine, liveness)


def _join(job: RankJob, control: Control) -> tuple[Engine, Liveness | None]:
    manifest = QuantizationJob.model_validate_json(job.job)
    device = devices.select_device(manifest.spec.workers.backend, job.local_rank)
    folder = WorkFolder(output=job.output, attempt=job.attempt)
    handover = read_handover(folder)
    journal = read_journal(folder)
    committed = 0 if journal is None else len(journal.layers)
    num_layers = len(handover.plan.layers)
    store, liveness = _meet(job, control, committed=committed, num_layers=num_layers)
    exchange = Exchange(
        job.rendezvous,
        store,
        backend=device.process_group,
        chunk_bytes=handover.plan.chunk_bytes,
        device=device.torch_device,
        should_stop=control.should_stop,
    )
    return _make_engine(job, control, manifest, device, folder, handover, exchange), liveness


def _meet(
    job: RankJob, control: Control, *, committed: int, num_layers: int
) -> tuple[Any, Liveness | None]:
    """The gang's store, which rank 0 hosts, and the watch over it; nothing for a rank alone."""
    rendezvous = job.rendezvous
    control.progress(stage="Starting", layer=committed, num_layers=num_layers)
    if rendezvous.world_size == 1:
        return None, None
    if rendezvous.rank == 0:
        store = open_meeting(rendezvous)
        control.announce_port(store.port)
    else:
        port = rendezvous.port or control.wait_for_port()
        store = reach_meeting(rendezvous, port=port, should_stop=control.should_stop)
    liveness = Liveness(rendezvous, store.port, control.lost)
    wait_for_everyone(store, rendezvous, should_stop=control.should_stop)
    return store, liveness


def _make_engine(
    job: RankJob,
    control: Control,
    manifest: QuantizationJob,
    device: devices.Device,
    folder: WorkFolder,
    handover: Handover,
    exchange: Exchange,
) -> Engine:
    plan, local_ranks = handover.plan, job.rendezvous.local_ranks
    checkpoint = Checkpoint.open(job.model_folder)
    reader = _reader(folder, job.rendezvous, checkpoint, plan)
    weights = _pod_reader(reader, exchange, local_ranks, plan)
    layout = make_layout(plan, exchange.world_size)
    own = layout.micro_batches_of(exchange.rank)
    return Engine(
        plan=plan,
        job=manifest,
        layout=layout,
        exchange=exchange,
        blocks=_blocks(checkpoint, plan),
        checkpoint=checkpoint,
        reader=reader,
        weights=weights,
        prefetcher=Prefetcher(weights),
        folder=folder,
        writer=Writer(),
        device=device,
        threads=job.threads,
        local_ranks=local_ranks,
        rows=rows_of_micro_batches(plan, own),
        ids={i: padded_ids(handover.tokens, handover.offsets, plan.micro_batches[i]) for i in own},
        windows=handover.windows,
        checkpoint_every=handover.checkpoint_every,
        planning_warnings=handover.warnings,
        progress=control.progress,
        committed=control.committed,
        should_stop=control.should_stop,
    )


def _pod_reader(reader: Reader, exchange: Exchange, local_ranks: range, plan: Plan) -> PodReader:
    twice = {tensor.name for tensor in kept_for_head(plan)}
    return PodReader(reader, exchange, local_ranks, name="weights", twice=twice)


def _blocks(checkpoint: Checkpoint, plan: Plan) -> Blocks:
    config = checkpoint.config
    return Blocks(family_of(config), config, TORCH_DTYPES[plan.model_dtype])


def _reader(
    folder: WorkFolder, rendezvous: Rendezvous, checkpoint: Checkpoint, plan: Plan
) -> Reader:
    """Reads weights, refuses what is not finite, and what is not what was read before.

    Every pod reads every layer, but a layer's content is hashed by one pod only.
    """
    pods = rendezvous.world_size // rendezvous.processes
    return Reader(
        checkpoint.folder,
        checkpoint.tensors,
        check_finite=True,
        hashed={t.name for layer in plan.layers[rendezvous.pod :: pods] for t in layer.source},
        known_hashes=_known_hashes(read_journal(folder)),
    )


def _announce(engine: Engine, control: Control, start: int) -> None:
    """Say how much there is to do."""
    own = engine.layout.micro_batches_of(engine.rank)
    control.progress(
        stage="Calibrating",
        layer=start,
        num_layers=len(engine.plan.layers),
        num_micro_batches=len(own),
        num_samples=sum(len(engine.plan.micro_batches[index].samples) for index in own),
        num_passes=max((num_passes(engine.plan, x) for x in engine.plan.layers[start:]), default=0),
    )


def _units(engine: Engine, start: int) -> int:
    """Micro-batches times passes that are left to this rank, for the ETA."""
    passes = sum(num_passes(engine.plan, layer) for layer in engine.plan.layers[start:])
    return passes * len(engine.layout.micro_batches_of(engine.rank))


def _known_hashes(journal: Journal | None) -> dict[str, str]:
    """Content of every tensor that a committed layer was made from."""
    layers = () if journal is None else journal.layers
    return {name: digest for layer in layers for name, digest in layer.source_sha256.items()}


def _agree(engine: Engine, job: RankJob) -> int:
    """Compare the numerics of all ranks and of the journal; return the first layer to process."""
    exchange, folder = engine.exchange, engine.folder
    identity = devices.numerics_identity(engine.device, job.threads)
    exchange.put(f"numerics/{engine.rank}", json.dumps(identity))
    if engine.rank == 0:
        for rank in range(1, exchange.world_size):
            other = json.loads(exchange.get(f"numerics/{rank}"))
            _check_equal(identity, other, rank)
        journal = read_journal(folder)
        if journal is None:
            journal = Journal(
                plan_digest=engine.plan.digest, attempt=folder.attempt, numerics=identity
            )
        warnings = check_same_numerics(
            journal, identity, allow_other=engine.job.spec.checkpoint.allow_other_numerics
        )
        new = tuple(warning for warning in warnings if warning not in journal.warnings)
        write_journal(folder, journal.model_copy(update={"warnings": (*journal.warnings, *new)}))
        exchange.put("start", str(len(journal.layers)))
        engine.begun_before = begun_layer(folder)
        engine.committed(journal.layers)
    return int(exchange.get("start"))


def _check_equal(identity: dict[str, str], other: dict[str, str], rank: int) -> None:
    for key in sorted(set(identity) | set(other)):
        if identity.get(key) != other.get(key):
            raise InvalidInput(
                f"numerics identity of rank {rank}: {key}",
                other.get(key),
                f"must be that of rank 0, {identity.get(key)!r}: nodes of one job must be alike",
            )


def _process_layers(engine: Engine, control: Control, start: int) -> None:
    layers = engine.plan.layers[start:]
    if layers:
        engine.prefetch(layers[0])
    begun, started = start, monotonic()
    try:
        for layer in layers:
            begun = layer.index
            left = _time_left(engine, control, start, begun, monotonic() - started)
            control.progress(layer=begun, micro_batch=0, samples=0, message=layer.name, **left)
            logger.info(
                "layer=%d name=%s attempt=%d", layer.index, layer.name, engine.folder.attempt
            )
            process_layer(engine, layer)
            begun = layer.index + 1
        engine.weights.close()
        if layers:
            engine.writer.wait(layers[-1].index, engine.should_stop)
    except Interrupted:
        stop_submitting(engine, begun)
        raise
    engine.writer.close()


def _time_left(
    engine: Engine, control: Control, start: int, layer: int, elapsed: float
) -> dict[str, Any]:
    """The ETA where nothing is passed through layers: by the bytes of those that are done."""
    if control.pace.total_units or layer == start:
        return {}
    sizes = [sum(t.num_bytes for t in x.source) for x in engine.plan.layers]
    done, left = sum(sizes[start:layer]), sum(sizes[layer:])
    return {"eta_seconds": elapsed * left / done} if done else {}


def _leave_together(engine: Engine, liveness: Liveness | None) -> None:
    if liveness is not None:
        liveness.stop()  # first: rank 0 leaves as soon as all have said bye, and its store with it
        engine.exchange.close()
