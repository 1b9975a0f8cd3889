"""Output tensors that no source tensor and no quantized linear gives."""

from dataclasses import dataclass

from quantfleet_api.plan import TensorMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTensor:
    """A tensor that a format wants written and the source checkpoint does not hold."""

    meta: TensorMeta
    copy_of: str  # full name of the source tensor whose bytes it repeats
