"""File formats: the tensors and JSON files by which a server loads a quantized model.

A format is a module of functions that has the shape of `Format`. Planning asks `refusal`,
`tensors`, `extra_tensors` and `file_names`; the engine encodes, keeps the sidecar in its journal
and runs what `decode` returns; `metadata_files` completes the folder.

The law: decode(encode(q), sidecar(q)) has the codes, scales and zero points of q bit for bit. The
bias alone may differ, by the format's own rounding: it is then the bias that a server adds.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from quantfleet_api.plan import (
    DType,
    FilePlan,
    FormatName,
    LinearPlan,
    LinearScheme,
    Plan,
    SitePlan,
    TensorMeta,
)
from quantfleet_worker.formats import ascend, compressed_tensors
from quantfleet_worker.formats.derived import DerivedTensor
from quantfleet_worker.schemes import QuantizedLinear

__all__ = ["FORMATS", "DerivedTensor", "Format", "assert_shared_input"]


class Format(Protocol):
    """What a format module offers; tensor names are full checkpoint names throughout."""

    @property
    def folder(self) -> str:
        """Folder of this format where an output has several."""

    @property
    def index_name(self) -> str:
        """File name of the index of several tensor files."""

    def refusal(self, scheme: LinearScheme, *, model_dtype: DType) -> str | None:
        """Why nothing loads a linear of this scheme, as one clause; None where something does."""

    def mixture_refusal(self, schemes: Collection[LinearScheme]) -> str | None:
        """Why nothing loads linears of these schemes in one model; None where something does."""

    def tensors(self, linear: LinearPlan, model_dtype: DType) -> tuple[TensorMeta, ...]:
        """What is written for a quantized linear, its bias included."""

    def encode(
        self, linear: LinearPlan, quantized: QuantizedLinear, model_dtype: DType
    ) -> dict[str, Tensor]:
        """The tensors that `tensors` lists."""

    def sidecar(self, linear: LinearPlan, quantized: QuantizedLinear) -> dict[str, Tensor]:
        """What `decode` needs and `encode` loses; names do not clash with encoded ones."""

    def decode(
        self,
        linear: LinearPlan,
        tensors: Mapping[str, Tensor],
        sidecar: Mapping[str, Tensor],
        model_dtype: DType,
    ) -> QuantizedLinear:
        """The linear that a server computes; both mappings may hold other tensors too."""

    def extra_tensors(
        self, embedding: TensorMeta, *, head: str, tied: bool, head_quantized: bool
    ) -> tuple[DerivedTensor, ...]:
        """What is written beyond the source's tensors and the quantized linears.

        `embedding` is the input embedding's weight, `head` the head's module name, `tied` whether
        the source's head is that embedding.
        """

    def file_names(self, num_files: int) -> tuple[str, ...]:
        """Names of the tensor files, in order."""

    def index_json(self, files: Sequence[FilePlan]) -> bytes:
        """Content of the index over `files`."""

    def metadata_files(self, plan: Plan, config: Mapping[str, Any]) -> dict[str, bytes]:
        """Every file of the folder that holds no tensor, by name, the index included.

        `config` is the source's config.json. Copied files (tokenizer, licence) are not here.
        """


FORMATS: dict[FormatName, Format] = {"CompressedTensors": compressed_tensors, "Ascend": ascend}


def assert_shared_input(site: SitePlan, quantized: Mapping[str, QuantizedLinear]) -> None:
    """Check that the static linears of a site have one input scale and zero point, bit for bit.

    `quantized` holds the site's quantized linears by full name. Servers load the linears that they
    fuse into one parameter: of two values one would be lost without a word.
    """
    static = [q for x in site.linears if (q := quantized.get(x.name)) and q.input_scale is not None]
    for other in static[1:]:
        assert _equal(static[0].input_scale, other.input_scale), f"{site.name}: input scales differ"
        assert _equal(static[0].input_zero_point, other.input_zero_point), (
            f"{site.name}: input zero points differ"
        )


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
