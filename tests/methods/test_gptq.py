"""GPTQ: equal to the paper's recursion, to RTN where data says nothing, and below RTN elsewhere."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from quantfleet_api.plan import GPTQOptions, WeightScheme
from quantfleet_worker.methods import gptq, rtn
from quantfleet_worker.numerics import scale_zero_point, zero_point
from quantfleet_worker.schemes import QuantizedLinear, dequantized_weight


@dataclass(frozen=True)
class Case:
    rows: int
    columns: int
    bits: int = 4
    symmetric: bool = True
    group_size: int = 0
    order: bool = False
    block_size: int = 128
    dampening: str = "0.01"
    scale_dtype: torch.dtype = torch.float32

    @property
    def scheme(self) -> WeightScheme:
        return WeightScheme.model_validate(
            {
                "bits": self.bits,
                "symmetric": self.symmetric,
                "group_size": self.group_size,
                "gptq": {
                    "block_size": self.block_size,
                    "dampening": self.dampening,
                    "activation_order": self.order,
                },
            }
        )


CASES = [
    Case(8, 64),
    Case(8, 64, order=True),
    Case(24, 160, group_size=32),
    Case(24, 160, group_size=32, order=True),
    Case(24, 160, group_size=32, symmetric=False),
    Case(24, 160, group_size=32, symmetric=False, order=True, scale_dtype=torch.bfloat16),
    Case(16, 256, group_size=128, block_size=32),
    Case(16, 256, group_size=128, block_size=96, scale_dtype=torch.float16),
    Case(7, 300, symmetric=False, order=True),
    Case(7, 300, bits=8),
    Case(7, 300, bits=8, order=True, block_size=1),
    Case(5, 35, group_size=5, block_size=7),
    Case(5, 96, group_size=48, block_size=16),
    Case(5, 192, group_size=48, block_size=96),
    Case(1, 33, symmetric=False, block_size=1000),
]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def weights(case: Case, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(case.rows, case.columns, generator=generator) * 0.05


def second_moment(columns: int, seed: int = 0, rows: int = 1024) -> Tensor:
    """Of correlated channels of different sizes, as activations are."""
    generator = torch.Generator().manual_seed(seed + 100)
    mixing = torch.randn(columns, columns, generator=generator) / columns**0.5
    mixing += torch.eye(columns)
    sizes = torch.exp(torch.randn(columns, generator=generator))
    X_NI = (torch.randn(rows, columns, generator=generator) @ mixing) * sizes
    return X_NI.T @ X_NI


def dequantized(found: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
    codes, scale, zero = found
    return dequantized_weight(QuantizedLinear(codes=codes, scale=scale, zero_point=zero))


def h_norm(W_OI: Tensor, Q_OI: Tensor, H_II: Tensor) -> float:
    E_OI = (W_OI - Q_OI).to(torch.float64)
    return float(((E_OI @ H_II.to(torch.float64)) * E_OI).sum())


def by_the_papers_recursion(W_OI: Tensor, H_II: Tensor, case: Case) -> Tensor:
    """Codes by equations 2 and 3 in float64: the inverse is updated column by column."""
    W_OI, H_II = W_OI.to(torch.float64), H_II.to(torch.float64).clone()
    order = list(range(case.columns))
    if case.order:
        order = torch.argsort(H_II.diagonal(), descending=True, stable=True).tolist()
    H_II.diagonal().add_(float(case.dampening) * H_II.diagonal().mean())
    inverse = torch.linalg.inv(H_II[order][:, order])
    size = case.group_size or case.columns
    start = W_OI.clone()
    W_OI = W_OI[:, order]
    codes = torch.empty(W_OI.shape, dtype=torch.int8)
    parameters: dict[int, tuple[Tensor, Tensor | None]] = {}
    for i, column in enumerate(order):
        group = column // size
        if group not in parameters:
            late = case.group_size and not case.order
            values = (W_OI if late else start)[:, group * size : (group + 1) * size]
            low, high = values.amin(1), values.amax(1)
            scale, _ = scale_zero_point(low, high, bits=case.bits, symmetric=case.symmetric)
            scale = scale.to(case.scale_dtype).to(torch.float32)
            zero = None if case.symmetric else zero_point(low, scale, bits=case.bits)
            parameters[group] = scale, zero
        scale, zero = parameters[group]
        point = 0.0 if zero is None else zero.to(torch.float64)
        limit = 2 ** (case.bits - 1)
        code = (W_OI[:, i] / scale + point).clamp(-limit, limit - 1).round()
        codes[:, column] = code.to(torch.int8)
        error = (W_OI[:, i] - (code - point) * scale) / inverse[i, i]
        W_OI -= torch.outer(error, inverse[i])
        inverse = inverse - torch.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return codes


@cases
def test_codes_are_those_of_the_papers_recursion(case: Case) -> None:
    W_OI, H_II = weights(case), second_moment(case.columns)
    codes, _, _, notes = gptq.quantize_weight(W_OI, H_II, case.scheme, scale_dtype=case.scale_dtype)
    assert notes == ()
    expected = by_the_papers_recursion(W_OI, H_II, case)
    # A value at the edge between two codes may go the other way in float32; what follows in its
    # row then differs too.
    same_rows = (codes == expected).all(1)
    assert float(same_rows.float().mean()) >= 0.85


@cases
def test_without_correlation_it_is_round_to_nearest_bit_for_bit(case: Case) -> None:
    W_OI = weights(case)
    codes, scale, zero, notes = gptq.quantize_weight(
        W_OI, torch.eye(case.columns), case.scheme, scale_dtype=case.scale_dtype
    )
    expected = rtn.quantize_weight(W_OI, case.scheme, scale_dtype=case.scale_dtype)
    assert notes == ()
    assert torch.equal(codes, expected[0])
    assert torch.equal(scale, expected[1])
    assert (zero is None) == (expected[2] is None) == case.symmetric
    if zero is not None and expected[2] is not None:
        assert torch.equal(zero, expected[2])


@cases
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_its_error_in_the_h_norm_is_below_round_to_nearest(case: Case, seed: int) -> None:
    case = replace(case, rows=24)  # a single row may be unlucky
    W_OI, H_II = weights(case, seed), second_moment(case.columns, seed)
    codes, scale, zero, _ = gptq.quantize_weight(
        W_OI, H_II, case.scheme, scale_dtype=case.scale_dtype
    )
    nearest = rtn.quantize_weight(W_OI, case.scheme, scale_dtype=case.scale_dtype)
    mine = h_norm(W_OI, dequantized((codes, scale, zero)), H_II)
    assert mine < h_norm(W_OI, dequantized(nearest), H_II)


@cases
def test_arguments_stay_as_they_are_and_a_shared_factor_changes_nothing(case: Case) -> None:
    W_OI, H_II = weights(case), second_moment(case.columns)
    W_before, H_before = W_OI.clone(), H_II.clone()
    scheme = case.scheme
    one = gptq.quantize_weight(W_OI, H_II, scheme, scale_dtype=case.scale_dtype)
    assert scheme.gptq is not None
    shared = gptq.factor(H_II, scheme.gptq)
    other = gptq.quantize_weight(W_OI, shared, scheme, scale_dtype=case.scale_dtype)
    assert torch.equal(W_OI, W_before)
    assert torch.equal(H_II, H_before)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("order", [False, True])
def test_a_block_of_rows_is_a_task_of_its_own(order: bool) -> None:
    """Other rows do not matter: a task's result is a function of its rows and H alone."""
    case = Case(40, 96, group_size=32, order=order)
    W_OI, H_II = weights(case), second_moment(96)
    other = W_OI.clone()
    other[:8], other[24:] = 9.0, -7.0
    for rows in (W_OI, other):
        whole = gptq.quantize_weight(rows, H_II, case.scheme, scale_dtype=torch.bfloat16)
        task = gptq.quantize_weight(rows[8:24], H_II, case.scheme, scale_dtype=torch.bfloat16)
        assert float((task[0] != whole[0][8:24]).float().mean()) <= 0.002
        again = gptq.quantize_weight(
            W_OI[8:24].clone(), H_II, case.scheme, scale_dtype=torch.bfloat16
        )
        assert torch.equal(task[0], again[0])
        assert torch.equal(task[1], again[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [False, True])
def test_weights_of_any_dtype_are_solved_in_float32(dtype: torch.dtype, order: bool) -> None:
    case = Case(8, 64, group_size=32, order=order)
    W_OI, H_II = weights(case).to(dtype), second_moment(64)
    one = gptq.quantize_weight(W_OI, H_II, case.scheme, scale_dtype=dtype)
    other = gptq.quantize_weight(W_OI.float(), H_II, case.scheme, scale_dtype=dtype)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], one[1].to(dtype).float())


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("dampening", ["0", "0.01"])
def test_columns_without_data_are_rounded_to_nearest_and_named(order: bool, dampening: str) -> None:
    case = Case(8, 64, order=order, dampening=dampening)
    W_OI, H_II = weights(case), second_moment(64)
    dead = torch.tensor([0, 5, 63])
    H_II[dead], H_II[:, dead] = 0, 0
    codes, _, _, notes = gptq.quantize_weight(W_OI, H_II, case.scheme, scale_dtype=torch.float32)
    nearest, _, _ = rtn.quantize_weight(W_OI, case.scheme, scale_dtype=torch.float32)
    assert torch.equal(codes[:, dead], nearest[:, dead])
    assert not torch.equal(codes, nearest)
    assert len(notes) == 1
    assert notes[0].startswith("3 columns without calibration data")


@pytest.mark.parametrize("order", [False, True])
def test_without_any_data_all_is_rounded_to_nearest_and_named(order: bool) -> None:
    case = Case(8, 64, order=order, group_size=32)
    W_OI = weights(case)
    nearest = rtn.quantize_weight(W_OI, case.scheme, scale_dtype=torch.float32)
    for H_II, reason in ((0.0, "no calibration data"), (torch.nan, "not finite")):
        found = gptq.quantize_weight(
            W_OI, torch.full((64, 64), H_II), case.scheme, scale_dtype=torch.float32
        )
        assert torch.equal(found[0], nearest[0])
        assert len(found[3]) == 1
        assert reason in found[3][0]


def test_a_failed_factor_raises_the_dampening_step_by_step_and_says_so() -> None:
    case = Case(8, 64, dampening="0.0001")
    H_II = second_moment(64)
    smallest = float(torch.linalg.eigvalsh(H_II)[0])
    mean = float(H_II.diagonal().mean())
    H_II.diagonal().sub_(smallest + 0.03 * mean)  # not positive definite: no such data exists
    found = gptq.factor(H_II, GPTQOptions(dampening="0.0001", activation_order=False))
    assert found.U_II is not None
    assert [note.split("raised to ")[1] for note in found.notes] == ["0.001", "0.01", "0.1"]
    *_, notes = gptq.quantize_weight(weights(case), H_II, case.scheme, scale_dtype=torch.float32)
    assert notes == found.notes


def test_a_factor_that_cannot_be_had_means_round_to_nearest_and_says_so() -> None:
    case = Case(8, 64)
    H_II = second_moment(64)
    H_II.diagonal().mul_(1e-3)  # correlations far above 1
    codes, _, _, notes = gptq.quantize_weight(
        weights(case), H_II, case.scheme, scale_dtype=torch.float32
    )
    nearest, _, _ = rtn.quantize_weight(weights(case), case.scheme, scale_dtype=torch.float32)
    assert torch.equal(codes, nearest)
    assert "rounded to nearest" in notes[-1]
    assert len(notes) == 3  # 0.01 -> 0.1 -> 1


def test_zero_dampening_is_tried_before_any_is_added() -> None:
    H_II = torch.ones(4, 4)  # rank 1
    found = gptq.factor(H_II, GPTQOptions(dampening="0", activation_order=True))
    assert found.U_II is not None
    assert found.notes[0] == "no Cholesky factor with dampening 0: raised to 0.001"


@pytest.mark.parametrize("columns", [1, 2, 31, 64, 200])
def test_the_factor_is_that_of_the_inverse(columns: int) -> None:
    H_II = second_moment(columns)
    found = gptq.factor(H_II, GPTQOptions(activation_order=False))
    assert found.U_II is not None
    damped = H_II.to(torch.float64)
    damped.diagonal().add_(0.01 * damped.diagonal().mean())
    U_II = found.U_II.to(torch.float64)
    product = U_II @ damped @ U_II.T
    assert torch.equal(U_II, U_II.triu())
    assert float((product - torch.eye(columns)).abs().max()) < 1e-3
