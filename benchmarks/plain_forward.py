"""The yardstick: transformers' own forward of the same tokens, by as many processes.

Each process holds the model, runs its share of the samples with one thread, and starts together
with the others. No hooks, no statistics, no writing: what a rank cannot do without.
"""

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

import numpy as np


def seconds(
    model: Path, samples: list[list[int]], *, processes: int, dtype: str, cores: int
) -> dict[str, float]:
    """Seconds of the slowest process: "whole" model, and "decoder" layers only."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    bounds = [i * len(samples) // processes for i in range(processes + 1)]
    lines, workers = [], []
    for index in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        own = samples[bounds[index] : bounds[index + 1]]
        worker = context.Process(target=_run, args=(theirs, barrier, model, own, dtype))
        worker.start()
        os.sched_setaffinity(worker.pid, sorted(os.sched_getaffinity(0))[:cores])
        theirs.close()
        lines.append(ours)
        workers.append(worker)
    found = [line.recv() for line in lines]
    for worker in workers:
        worker.join()
    return {kind: max(times[kind] for times in found) for kind in found[0]}


def _run(line: Connection, barrier, model: Path, samples: list[list[int]], dtype: str) -> None:  # type: ignore[no-untyped-def]
    import torch
    from transformers import AutoModelForCausalLM

    from quantfleet_worker.device import configure_numerics

    configure_numerics(1)
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), local_files_only=True
    ).eval()
    ids = [torch.from_numpy(np.asarray(sample, dtype=np.int64))[None] for sample in samples]
    times = {}
    with torch.no_grad():
        for kind, module in (("whole", loaded), ("decoder", loaded.model)):
            module(input_ids=ids[0], use_cache=False)  # first use allocates and picks kernels
            barrier.wait()
            started = monotonic()
            for sample in ids:
                module(input_ids=sample, use_cache=False)
            times[kind] = monotonic() - started
    line.send(times)
    line.close()
