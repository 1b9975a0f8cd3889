"""GPTQ (Frantar et al. 2022): quantize column by column, let later columns make up for the error.

The tensors of the loop are transposed, [I, O], so that a column of the weight is one run of memory.
Rows of the weight never meet: a block of rows is a task of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantfleet_api.plan import GPTQOptions, WeightScheme
from quantfleet_worker.methods import rtn
from quantfleet_worker.numerics import int_range

_DAMPENING_LIMIT = 1.0  # of the mean diagonal: beyond it H says next to nothing
_DAMPENING_FIRST = 0.001  # tried where the options ask for less and H needs more
_INNER = 32  # columns whose errors are spread one by one; beyond them by matrix products


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What GPTQ needs of H; weights that share an input share it.

    U_II: float32, upper triangular, U^T U = (H + dampening)^-1; None where none could be had, and
    weights are rounded to nearest. order: int64 [I], the column of each step; None: as they come.
    notes: whatever had to be done otherwise than asked.
    """

    U_II: Tensor | None
    order: Tensor | None
    notes: tuple[str, ...]


def quantize_weight(
    W_OI: Tensor,
    H_II: Tensor | Factor,
    scheme: WeightScheme,
    *,
    scale_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor | None, tuple[str, ...]]:
    """Codes int8 [O, I], scale float32 [O, G], zero point int8 [O, G] or None, and notes.

    1. Factor H, unless the caller has its factor (see `factor`).
    2. With activation order, the columns of most energy go first, and the groups, which stay those
       of the original columns, take their scales from the weights as they were. Without, a group
       takes its scale when its first column is reached, from the weights as updated until then.
    3. Quantize a block of columns, then subtract its errors from all later columns at once.
    """
    assert scheme.gptq is not None
    found = H_II if isinstance(H_II, Factor) else factor(H_II, scheme.gptq)  # 1
    if found.U_II is None:
        codes, scale, zero = rtn.quantize_weight(W_OI, scheme, scale_dtype=scale_dtype)
        return codes, scale, zero, found.notes
    columns = _Columns(W_OI, scheme, found.order, scale_dtype)  # 2
    for start in range(0, columns.features, columns.block_size):  # 3
        stop = min(start + columns.block_size, columns.features)
        E_BO = _quantize_block(columns, found.U_II, start, stop)
        columns.W_IO[stop:].addmm_(found.U_II[start:stop, stop:].T, E_BO, alpha=-1)
    codes, scale, zero = columns.result()
    return codes, scale, zero, found.notes


def factor(H_II: Tensor, options: GPTQOptions) -> Factor:
    """Factor the dampened H.

    A column without data (H_ii = 0) is merely rounded. Where H has no Cholesky factor, dampening is
    raised tenfold until it has, up to a limit. Each of these is a note.
    """
    H_II = H_II.to(torch.float32)
    diagonal = H_II.diagonal().clone()
    dead = diagonal == 0
    if bool(dead.all()):
        return _none("no calibration data reached it: rounded to nearest")
    if not bool(torch.isfinite(torch.stack([H_II.amin(), H_II.amax()])).all()):
        return _none("second moment is not finite: rounded to nearest")
    notes = []
    mean = float(diagonal[~dead].mean())
    if bool(dead.any()):
        notes.append(f"{int(dead.sum())} columns without calibration data: rounded to nearest")
        diagonal = torch.where(dead, mean, diagonal)
    order = None
    if options.activation_order:
        order = torch.argsort(diagonal, descending=True, stable=True)
        H_II, diagonal = H_II[order][:, order], diagonal[order]
    dampening = float(options.dampening)
    while (U_II := _inverse_factor(H_II, diagonal + dampening * mean)) is None:
        problem = f"no Cholesky factor with dampening {dampening:g}"
        if dampening >= _DAMPENING_LIMIT:
            return _none(*notes, f"{problem}: rounded to nearest")
        dampening = min(_DAMPENING_LIMIT, max(dampening * 10, _DAMPENING_FIRST))
        notes.append(f"{problem}: raised to {dampening:g}")
    return Factor(U_II=U_II, order=order, notes=tuple(notes))


def _none(*notes: str) -> Factor:
    return Factor(U_II=None, order=None, notes=notes)


class _Columns:
    """The weight on its way to codes, transposed and in the order in which columns go.

    W_IO: float32, what is left to quantize, changed in place. Q_IO: int8 codes.
    """

    def __init__(
        self,
        W_OI: Tensor,
        scheme: WeightScheme,
        order: Tensor | None,
        scale_dtype: torch.dtype,
    ) -> None:
        self.scheme, self.order, self.scale_dtype = scheme, order, scale_dtype
        W_OI = W_OI.to(torch.float32)
        rows, self.features = W_OI.shape
        self.group_size = scheme.group_size or self.features
        groups = self.features // self.group_size
        self.scale_GO = W_OI.new_empty(groups, rows)
        self.zero_GO = None if scheme.symmetric else W_OI.new_empty(groups, rows)
        self.late = order is None and scheme.group_size > 0  # scales are taken on the way
        if not self.late:
            grouped = W_OI.reshape(rows, groups, self.group_size)
            self._set_parameters(slice(None), grouped.transpose(0, 1))
        self.W_IO = W_OI.T.clone(memory_format=torch.contiguous_format)
        columns: Sequence[int] = range(self.features)
        if order is not None:
            self.W_IO, columns = self.W_IO[order], order.tolist()
        self.groups = [column // self.group_size for column in columns]
        self.Q_IO = torch.empty_like(self.W_IO, dtype=torch.int8)
        assert scheme.gptq is not None
        self.block_size, self.inner_size = scheme.gptq.block_size, _INNER
        if self.late:
            # A group that takes its scale on the way must have all of its columns up to date, so
            # runs of columns end where groups end. Runs are for speed: they do not change the sums.
            self.block_size = -(-self.block_size // self.group_size) * self.group_size
            self.inner_size = max(
                size for size in range(1, _INNER + 1) if self.group_size % size == 0
            )

    def parameters(self, column: int, W_BO: Tensor, offset: int) -> tuple[Tensor, Tensor | None]:
        """Scale and zero point [O] of a column; W_BO[offset:] holds it and those after it."""
        group = self.groups[column]
        if self.late and column % self.group_size == 0:
            values = W_BO[offset : offset + self.group_size]
            self._set_parameters(slice(group, group + 1), values.T.unsqueeze(0))
        zero = None if self.zero_GO is None else self.zero_GO[group]
        return self.scale_GO[group], zero

    def result(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Codes, scale and zero point by original column and row."""
        codes = self.Q_IO
        if self.order is not None:
            codes = torch.empty_like(self.Q_IO)
            codes[self.order] = self.Q_IO
        zero = None if self.zero_GO is None else self.zero_GO.T.to(torch.int8).contiguous()
        return codes.T.contiguous(), self.scale_GO.T.contiguous(), zero

    def _set_parameters(self, groups: slice, values: Tensor) -> None:
        scale, zero = rtn.weight_parameters(values, self.scheme, scale_dtype=self.scale_dtype)
        self.scale_GO[groups] = scale
        if self.zero_GO is not None and zero is not None:
            self.zero_GO[groups] = zero.to(torch.float32)


def _quantize_block(columns: _Columns, U_II: Tensor, start: int, stop: int) -> Tensor:
    """Quantize columns start..stop-1; their errors [stop - start, O], each over its U_ii."""
    W_BO = columns.W_IO[start:stop]
    U_BB = U_II[start:stop, start:stop]
    E_BO = torch.empty_like(W_BO)
    qmin, qmax = int_range(columns.scheme.bits)
    diagonal = U_BB.diagonal().tolist()
    width = stop - start
    for inner in range(0, width, columns.inner_size):
        inner_stop = min(inner + columns.inner_size, width)
        for i in range(inner, inner_stop):
            scale, zero = columns.parameters(start + i, W_BO, i)
            w, error = W_BO[i], E_BO[i]
            torch.div(w, scale, out=error)
            if zero is not None:
                error.add_(zero)
            error.clamp_(qmin, qmax).round_()
            columns.Q_IO[start + i] = error
            if zero is not None:
                error.sub_(zero)
            error.mul_(scale)
            torch.sub(w, error, out=error)
            error.div_(diagonal[i])
            W_BO[i + 1 : inner_stop].addr_(U_BB[i, i + 1 : inner_stop], error, alpha=-1)
        W_BO[inner_stop:].addmm_(
            U_BB[inner:inner_stop, inner_stop:].T, E_BO[inner:inner_stop], alpha=-1
        )
    return E_BO


def _inverse_factor(H_II: Tensor, diagonal: Tensor) -> Tensor | None:
    """U, upper triangular, with U^T U = inverse of H with that diagonal; None if it has none.

    Both ends reversed, H has a factor L; reversed back, V with H = V V^T is upper triangular, and
    U is its inverse. This never forms H's inverse, whose own factor loses half of the digits.
    """
    flipped = H_II.flip(0, 1)
    flipped.diagonal().copy_(diagonal.flip(0))
    L_II, info = torch.linalg.cholesky_ex(flipped)
    del flipped  # each of these has the size of H
    if int(info) != 0 or not bool(torch.isfinite(L_II.diagonal()).all()):
        return None
    identity = torch.eye(L_II.shape[0], dtype=L_II.dtype, device=L_II.device)
    inverse_II: Tensor = torch.linalg.solve_triangular(L_II, identity, upper=False)
    del L_II, identity
    if not bool(torch.isfinite(torch.stack(torch.aminmax(inverse_II))).all()):
        return None
    return inverse_II.flip(0, 1)
