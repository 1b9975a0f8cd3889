"""The manifest: a QuantizationJob as users write it, and the same with all defaults resolved.

Parsed by `loading`, checked by `rules`, read by planning, the launcher and the control plane.
The recipe's models are in `recipe`, the cluster-only fields of workers in `pods`.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt

from quantfleet_api.fields import (
    ClaimName,
    ClaimPath,
    DecimalString,
    Manifest,
    NaturalInt,
    OneOf,
    PositiveInt,
    broken,
    decimal_between,
    distinct,
    relative_path,
)
from quantfleet_api.plan import FormatName
from quantfleet_api.pods import PodOptions
from quantfleet_api.recipe import (
    GPTQ,
    PROPAGATION_DEFAULTS,
    Activations,
    Override,
    Recipe,
    SmoothQuant,
    Transform,
    Weights,
    linear_scheme,
    needs_data,
    resolved_recipe,
    smooth_quant_of,
)

__all__ = [
    "GPTQ",
    "PROPAGATION_DEFAULTS",
    "SPEC_VERSION",
    "Activations",
    "Calibration",
    "Checkpoint",
    "Evaluation",
    "JobSpec",
    "Metadata",
    "Model",
    "Output",
    "OutputClaim",
    "Override",
    "PathInClaim",
    "QuantizationJob",
    "Recipe",
    "RunPolicy",
    "SmoothQuant",
    "Source",
    "Transform",
    "Weights",
    "Workers",
    "linear_scheme",
    "needs_data",
    "resolve",
    "smooth_quant_of",
]

SPEC_VERSION = 1
"""Version of the resolved spec; a worker refuses one that it does not know."""


class PathInClaim(Manifest):
    """A file or folder in a volume; the path "" is the volume itself."""

    claim_name: ClaimName
    path: ClaimPath = ""


class OutputClaim(Manifest):
    """The folder to publish; never the volume itself, because it is made by renaming."""

    claim_name: ClaimName
    path: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(relative_path)]


class Source(OneOf):
    """Where something is read from."""

    pvc: PathInClaim


def _untrusted(value: bool) -> bool:
    if value:
        raise broken("must be false: code that comes with a model is never run")
    return value


class Model(Manifest):
    """The model to quantize: a folder in the Hugging Face layout."""

    source: Source
    trust_remote_code: Annotated[StrictBool, AfterValidator(_untrusted)] = False


class Calibration(Manifest):
    """The texts that statistics are taken from."""

    source: Source
    text_field: Literal["text", "messages", "inputs_pretokenized"] = "text"
    sample_count: PositiveInt
    sequence_length: PositiveInt  # tokens
    min_tokens: PositiveInt = 1
    concatenate: StrictBool = False
    batch_size: Annotated[StrictInt, Field(ge=1, le=65536)] = 1
    shuffle: Literal["Never", "Seeded"] = "Never"
    seed: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] = 42


class Workers(PodOptions):
    """Who computes; ranks = count x processes_per_worker."""

    count: Annotated[StrictInt, Field(ge=1, le=10_000)] | None = None
    processes_per_worker: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    threads_per_process: Annotated[StrictInt, Field(ge=1, le=1024)] = 1
    backend: Literal["Auto", "HCCL", "NCCL", "Gloo"] = "Auto"


class Output(Manifest):
    """What is published and where: one format is the folder itself, several are its subfolders."""

    pvc: OutputClaim
    formats: Annotated[
        tuple[FormatName, ...],
        Field(min_length=1, max_length=2),
        AfterValidator(distinct("format")),
    ]
    overwrite_policy: Literal["Fail", "Replace"] = "Fail"


class Checkpoint(Manifest):
    """How often activations are kept; 0 = chosen from the free space."""

    every_layers: Annotated[StrictInt, Field(ge=0, le=100_000)] = 1
    allow_other_numerics: StrictBool = False


class Evaluation(Manifest):
    """Perplexity of the float and the quantized model on held-out text, and the gate on it."""

    source: Source
    window_count: PositiveInt
    window_length: Annotated[StrictInt, Field(ge=2, le=2**31 - 1)]  # tokens; one has no successor
    max_perplexity_ratio: (
        Annotated[DecimalString, decimal_between("0", "1000000", low_open=True)] | None
    ) = None  # quantized over float; None only measures


class RunPolicy(Manifest):
    """How the cluster runs it; a local run ignores all of it."""

    suspend: StrictBool = False
    backoff_limit: NaturalInt = 3
    active_deadline_seconds: PositiveInt | None = None
    pre_running_deadline_seconds: PositiveInt | None = None
    ttl_seconds_after_finished: NaturalInt | None = None


class JobSpec(Manifest):
    """What is asked for."""

    model: Model
    calibration: Calibration | None = None
    recipe: Recipe
    workers: Workers = Workers()
    output: Output
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation | None = None
    run_policy: RunPolicy = RunPolicy()


class Metadata(Manifest):
    """The job's name; child objects add up to 17 characters to it."""

    name: Annotated[str, Field(max_length=46, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]


class QuantizationJob(Manifest):
    """The whole manifest."""

    api_version: Literal["quantfleet.io/v1alpha1"]
    kind: Literal["QuantizationJob"]
    metadata: Metadata
    spec: JobSpec


def resolve(job: QuantizationJob) -> QuantizationJob:
    """The job with every value that depends on others filled in; a second call changes nothing.

    It expects a job that follows `rules.check`, as every job of `loading` does.
    """
    spec = job.spec.model_copy(update={"recipe": resolved_recipe(job.spec.recipe)})
    return job.model_copy(update={"spec": spec})
