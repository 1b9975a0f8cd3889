"""What the planning process leaves in the work folder for the ranks: plan and tokens.

Written once an attempt by the launcher, read by every rank. Imports no torch at the top, because
the launcher does without it.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from quantfleet_api.errors import TryAgain
from quantfleet_api.plan import Plan
from quantfleet_worker.work_folder import WorkFolder

if TYPE_CHECKING:
    from torch import Tensor

PLAN, TOKENS = "plan.json", "tokens.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Plan, token ids of all samples, evaluation windows.

    tokens: int32 [total]; offsets: int64 [samples + 1]; windows: int64 [count, length] or None.
    """

    plan: Plan
    tokens: Any
    offsets: Any
    windows: "Tensor | None"
    checkpoint_every: int  # layers
    warnings: tuple[str, ...]  # what planning found not as asked for


def packed_tokens(
    tokens: Any,
    offsets: Any,
    windows: Any | None,
    *,
    checkpoint_every: int,
    warnings: tuple[str, ...],
) -> bytes:
    """The arrays as one .npz file."""
    buffer = BytesIO()
    np.savez(
        buffer,
        tokens=tokens,
        offsets=offsets,
        windows=np.empty((0, 0), dtype=np.int64) if windows is None else np.asarray(windows),
        checkpoint_every=np.asarray(checkpoint_every),
        warnings=np.asarray(warnings, dtype=np.str_),
    )
    return buffer.getvalue()


def write_handover(folder: WorkFolder, plan: str, tokens: bytes) -> None:
    """Leave plan (JSON) and tokens (`packed_tokens`) for the ranks of this attempt."""
    folder.write_bytes(folder.path / PLAN, plan.encode())
    folder.write_bytes(folder.path / TOKENS, tokens)


def read_handover(folder: WorkFolder) -> Handover:
    """What the launcher left."""
    import torch

    try:
        plan = Plan.model_validate_json((folder.path / PLAN).read_bytes())
        with np.load(folder.path / TOKENS) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except FileNotFoundError as error:
        raise TryAgain(f"work folder {folder.path} was taken away") from error
    windows = found["windows"]
    return Handover(
        plan=plan,
        tokens=found["tokens"],
        offsets=found["offsets"],
        windows=torch.from_numpy(windows) if windows.size else None,
        checkpoint_every=int(found["checkpoint_every"]),
        warnings=tuple(str(warning) for warning in found["warnings"]),
    )
