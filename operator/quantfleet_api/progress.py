"""The progress message: what a rank tells the launcher, the CLI shows and the cluster receives."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Stage = Literal[
    "Planning", "Starting", "Calibrating", "Solving", "Writing", "Verifying", "Publishing", "Done"
]


class Progress(BaseModel):
    """One rank's state. Fractions of work are in micro-batches, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    world_size: int
    stage: Stage
    layer: int = 0  # layers finished (committed or being committed)
    num_layers: int = 0
    micro_batch: int = 0  # done by this rank in the present pass
    num_micro_batches: int = 0  # of this rank
    pass_index: int = 0  # 1 observed, 2 quantized
    num_passes: int = 0
    samples: int = 0  # done by this rank in the present pass
    num_samples: int = 0  # of this rank, in a pass
    tokens_per_second: float = 0.0  # of this rank, over the present pass
    eta_seconds: float | None = None
    message: str = ""
