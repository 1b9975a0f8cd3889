"""How far a quantized linear is from the float one, from the best statistic that was collected.

Each function returns (error, reference): the squared error and the squared size of what it is
relative to, over the rows handed in, so tasks of one linear add up before the ratio is taken.
W is the weight [O, I] and Q the one its codes stand for.
"""

import torch
from torch import Tensor


def output_error(W_OI: Tensor, Q_OI: Tensor, H_II: Tensor) -> tuple[float, float]:
    """|E x|^2 and |W x|^2 summed over all calibration rows, by H = sum x x^T, with E = W - Q.

    Never expanded into W H W - 2 W H Q + Q H Q, whose terms cancel to less than their rounding.
    """
    W_OI = W_OI.to(torch.float32)
    return _quadratic(W_OI - Q_OI.to(torch.float32), H_II), _quadratic(W_OI, H_II)


def reservoir_error(W_OI: Tensor, Q_OI: Tensor, rows_NI: Tensor) -> tuple[float, float]:
    """|E x|^2 and |W x|^2 summed over the rows of a reservoir."""
    W_OI = W_OI.to(torch.float32)
    E_OI = W_OI - Q_OI.to(torch.float32)
    return _square_sum(rows_NI @ E_OI.T), _square_sum(rows_NI @ W_OI.T)


def weight_error(W_OI: Tensor, Q_OI: Tensor) -> tuple[float, float]:
    """|E|^2 and |W|^2, without any data."""
    W_OI = W_OI.to(torch.float32)
    return _square_sum(W_OI - Q_OI.to(torch.float32)), _square_sum(W_OI)


def _quadratic(E_OI: Tensor, H_II: Tensor) -> float:
    return float(((E_OI @ H_II) * E_OI).sum(1).sum().clamp(min=0.0))


def _square_sum(values: Tensor) -> float:
    return float(values.square().sum(-1).sum())
