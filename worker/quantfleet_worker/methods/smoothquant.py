"""SmoothQuant (Xiao et al. 2022): move the difficulty of activations into the weights.

Factors s [I] divide a site's input and multiply the columns of its linears. Statistics of the
divided input follow from those of the input, so no pass is needed to have them.
"""

import torch
from torch import Tensor

_SMALLEST, _LARGEST = 1e-4, 1e4  # beyond these, float16 models lose what they divide


def smoothing_factors(
    act_min_I: Tensor,
    act_max_I: Tensor,
    weight_absmax_I: Tensor,
    *,
    alpha: float,
) -> Tensor:
    """s_I = max|X_i|^alpha / max|W_i|^(1 - alpha) (equation 4), float32.

    weight_absmax_I is taken over the rows of all linears that share the input. A channel in which
    either is 0 or unknown keeps s = 1: nothing is there to balance.
    """
    act_absmax_I = torch.maximum(act_min_I.abs(), act_max_I.abs())
    return _factors(act_absmax_I, weight_absmax_I, alpha)


def grouped_smoothing_factors(
    act_min_I: Tensor,
    act_max_I: Tensor,
    weight_absmax_I: Tensor,
    *,
    alpha: float,
    heads_per_group: int,
    head_dim: int,
) -> tuple[Tensor, Tensor]:
    """Factors of o_proj's input whose inverse can go into the rows of a grouped-query v_proj.

    The `heads_per_group` query heads that read one kv head share its factors, taken from the
    largest of each over them. Returns s_I, a factor a query channel, and the same by row of v_proj
    [I / heads_per_group].
    """

    def shared(absmax_I: Tensor) -> Tensor:
        absmax_I = torch.where(torch.isfinite(absmax_I), absmax_I, 0.0)
        return absmax_I.reshape(-1, heads_per_group, head_dim).amax(1).reshape(-1)

    act_absmax_I = torch.maximum(act_min_I.abs(), act_max_I.abs())
    rows = _factors(shared(act_absmax_I), shared(weight_absmax_I), alpha)
    by_head = rows.reshape(-1, 1, head_dim).expand(-1, heads_per_group, head_dim)
    return by_head.reshape(-1), rows


def smooth_second_moment(H_II: Tensor, s_I: Tensor) -> Tensor:
    """H of the input divided by s: H_ij / (s_i s_j), symmetric to the last bit."""
    return H_II / torch.outer(s_I, s_I)


def _factors(act_absmax: Tensor, weight_absmax: Tensor, alpha: float) -> Tensor:
    act, weight = act_absmax.to(torch.float32), weight_absmax.to(torch.float32)
    s = act.pow(alpha) / weight.pow(1.0 - alpha)
    known = torch.isfinite(act) & torch.isfinite(weight) & (act > 0) & (weight > 0)
    return torch.where(known & torch.isfinite(s), s.clamp(_SMALLEST, _LARGEST), 1.0)
