"""The errors of the report against their definitions in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantfleet_worker.methods import error


def case(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(weight, the weight a little off, calibration rows)."""
    generator = torch.Generator().manual_seed(seed)
    W_OI = torch.randn(rows, columns, generator=generator)
    Q_OI = W_OI + 1e-3 * torch.randn(rows, columns, generator=generator)
    X_NI = torch.randn(64, columns, generator=generator) * torch.exp(
        torch.randn(columns, generator=generator)
    )
    return W_OI, Q_OI, X_NI


def direct(E_OI: Tensor, X_NI: Tensor) -> float:
    return float((X_NI.to(torch.float64) @ E_OI.to(torch.float64).T).square().sum())


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_the_error_from_h_is_that_of_the_outputs(rows: int, columns: int, seed: int) -> None:
    W_OI, Q_OI, X_NI = case(rows, columns, seed)
    found, reference = error.output_error(W_OI, Q_OI, X_NI.T @ X_NI)
    assert found == pytest.approx(direct(W_OI - Q_OI, X_NI), rel=1e-3)
    assert reference == pytest.approx(direct(W_OI, X_NI), rel=1e-3)


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), seed=st.integers(0, 999))
@settings(max_examples=30)
def test_errors_from_rows_and_from_weights(rows: int, columns: int, seed: int) -> None:
    W_OI, Q_OI, X_NI = case(rows, columns, seed)
    found, reference = error.reservoir_error(W_OI, Q_OI, X_NI)
    assert found == pytest.approx(direct(W_OI - Q_OI, X_NI), rel=1e-4)
    assert reference == pytest.approx(direct(W_OI, X_NI), rel=1e-4)
    found, reference = error.weight_error(W_OI, Q_OI)
    assert found == pytest.approx(direct(W_OI - Q_OI, torch.eye(columns)), rel=1e-4)
    assert reference == pytest.approx(direct(W_OI, torch.eye(columns)), rel=1e-4)


def test_the_error_from_h_is_exact_where_the_expanded_form_is_negative() -> None:
    """Nearly equal weights under one dominant channel: W H W - 2 W H Q + Q H Q cancels."""
    W_OI, _, X_NI = case(4, 200, 0)
    X_NI[:, 0] *= 1e3
    H_II = X_NI.T @ X_NI
    expanded, exact = [], []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        Q_OI = W_OI + 1e-6 * torch.randn(4, 200, generator=generator)
        WH, QH = W_OI @ H_II, Q_OI @ H_II
        expanded.append(float((WH * W_OI).sum() - 2 * (WH * Q_OI).sum() + (QH * Q_OI).sum()))
        found, _ = error.output_error(W_OI, Q_OI, H_II)
        exact.append(found / direct(W_OI - Q_OI, X_NI))
    assert min(expanded) < 0
    assert min(exact) == pytest.approx(1, rel=1e-2)
    assert max(exact) == pytest.approx(1, rel=1e-2)


def test_blocks_of_rows_add_up_and_an_equal_weight_has_no_error() -> None:
    W_OI, Q_OI, X_NI = case(12, 20, 1)
    H_II = X_NI.T @ X_NI
    whole = error.output_error(W_OI, Q_OI, H_II)
    blocks = [error.output_error(W_OI[a : a + 5], Q_OI[a : a + 5], H_II) for a in (0, 5, 10)]
    for index in (0, 1):
        assert sum(block[index] for block in blocks) == pytest.approx(whole[index], rel=1e-5)
    assert error.output_error(W_OI, W_OI, H_II)[0] == 0
    negative = -torch.eye(20)  # not a second moment; rounding can make one look like it
    assert error.output_error(W_OI, Q_OI, negative) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_any_dtype_are_compared_in_float32(dtype: torch.dtype) -> None:
    W_OI, Q_OI, X_NI = case(6, 9, 2)
    W_OI = W_OI.to(dtype)
    wide = W_OI.to(torch.float32)
    assert error.weight_error(W_OI, Q_OI) == error.weight_error(wide, Q_OI)
    assert error.reservoir_error(W_OI, Q_OI, X_NI) == error.reservoir_error(wide, Q_OI, X_NI)
