"""The manifest: a QuantizationJob as users write it, and the same with all defaults resolved.

Parsed by `loading`, checked by `rules`, read by planning, the launcher and the control plane.
The recipe's models are in `recipe`, the cluster-only fields of workers in `pods`.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt

from quantfleet_api.fields import (
    DEFAULT_IN_CLUSTER,
    LIST_SET,
    PATH_SCHEMA,
    ClaimName,
    ClaimPath,
    DecimalBetween,
    DecimalString,
    Manifest,
    NaturalInt,
    OneOf,
    PositiveInt,
    ShortText,
    broken,
    distinct,
    in_cel,
    relative_path,
    without_nulls,
)
from quantfleet_api.plan import FormatName
from quantfleet_api.pods import LabelKey, Labels, PodOptions
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
    """The PersistentVolumeClaim, in the job's namespace. Mounted read-only."""
    path: ClaimPath = ""
    """A file or folder in the claim, relative to its root; empty is the root itself."""


class OutputClaim(Manifest):
    """The folder to publish; never the volume itself, because it is made by renaming."""

    claim_name: ClaimName
    """The PersistentVolumeClaim, in the job's namespace, that every worker can write to: with
    workers on several nodes it needs the access mode ReadWriteMany."""
    path: Annotated[
        str,
        Field(min_length=1, max_length=1024, json_schema_extra=PATH_SCHEMA),
        AfterValidator(relative_path),
    ]
    """The folder to publish, relative to the claim's root and not the root itself. Beside it lie
    <path>.work while the job runs and <path>.rejected if a gate was missed."""


class Source(OneOf):
    """Where something is read from."""

    pvc: PathInClaim
    """A path in a PersistentVolumeClaim."""


def _untrusted(value: bool) -> bool:
    if value:
        raise broken(UNTRUSTED)
    return value


UNTRUSTED = "must be false: code that comes with a model is never run"


class Model(Manifest):
    """The model to quantize: a folder in the Hugging Face layout."""

    source: Source
    """The folder with config.json, tokenizer and safetensors files."""
    trust_remote_code: Annotated[
        StrictBool, Field(json_schema_extra=in_cel("!self", UNTRUSTED)), AfterValidator(_untrusted)
    ] = False
    """Whether Python code that lies beside the model may run. Only false is accepted."""


class Calibration(Manifest):
    """The texts that statistics are taken from."""

    source: Source
    """A .jsonl, .parquet or .txt file, or a folder of them."""
    text_field: Literal["text", "messages", "inputs_pretokenized"] = "text"
    """The field of a record that holds the text; messages goes through the tokenizer's chat
    template."""
    sample_count: PositiveInt
    """How many texts are used: the first ones in file order, or after a seeded shuffle."""
    sequence_length: PositiveInt
    """Tokens a sample at most: longer texts are cut, and counted; shorter ones stay short."""
    min_tokens: PositiveInt = 1
    """Tokens below which a text is dropped, and counted. At most sequenceLength."""
    concatenate: StrictBool = False
    """Whether texts are packed into full windows of sequenceLength tokens."""
    batch_size: Annotated[StrictInt, Field(ge=1, le=65536)] = 1
    """Samples that go through a layer together. More is faster and takes more device memory."""
    shuffle: Literal["Never", "Seeded"] = "Never"
    """Whether samples are chosen in file order, or after a shuffle by seed."""
    seed: Annotated[StrictInt, Field(ge=0, le=2**53 - 1)] = 42
    """Seed of the shuffle."""


class Workers(PodOptions):
    """Who computes; ranks = count x processes_per_worker."""

    count: (
        Annotated[StrictInt, Field(ge=1, le=10_000, json_schema_extra={DEFAULT_IN_CLUSTER: 1})]
        | None
    ) = None
    """Worker pods. Absent: 1 in a cluster; a local run chooses by its cores."""
    processes_per_worker: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    """Ranks a pod, usually one a device; ranks = count x processesPerWorker. The published bytes
    do not depend on it."""
    threads_per_process: Annotated[StrictInt, Field(ge=1, le=1024)] = 1
    """Threads a rank on a CPU. Another number may change the last bits of the result."""
    backend: Literal["Auto", "HCCL", "NCCL", "Gloo"] = "Auto"
    """What ranks talk through; Auto chooses by the device (NPU, GPU, CPU)."""


class Output(Manifest):
    """What is published and where: one format is the folder itself, several are its subfolders."""

    pvc: OutputClaim
    """The folder to publish. It is absent or complete and verified, never in between."""
    formats: Annotated[
        tuple[FormatName, ...],
        Field(min_length=1, max_length=2, json_schema_extra=LIST_SET),
        AfterValidator(distinct("format")),
    ]
    """Checkpoint formats. One is the folder itself; several are its subfolders
    compressed-tensors and ascend."""
    overwrite_policy: Literal["Fail", "Replace"] = "Fail"
    """What happens if the folder exists with other content: the job fails with exit code 64, or
    the folder is replaced once the new one is complete."""


class Checkpoint(Manifest):
    """How often activations are kept; 0 = chosen from the free space."""

    every_layers: Annotated[StrictInt, Field(ge=0, le=100_000)] = 1
    """Layers between two saved sets of activations, so the most that is computed again after a
    crash; 0 chooses by the free space of the output claim."""
    allow_other_numerics: StrictBool = False
    """Whether another attempt may go on with devices or libraries of other numerics; the report
    then names it."""


class Evaluation(Manifest):
    """Perplexity of the float and the quantized model on held-out text, and the gate on it."""

    source: Source
    """A .jsonl, .parquet or .txt file with text that is not used for calibration."""
    window_count: PositiveInt
    """Windows of text that are scored."""
    window_length: Annotated[StrictInt, Field(ge=2, le=2**31 - 1)]  # a single one has no successor
    """Tokens a window."""
    max_perplexity_ratio: (
        Annotated[DecimalString, DecimalBetween("0", "1000000", low_open=True)] | None
    ) = None
    """Highest ratio of the quantized model's perplexity to the float model's, a decimal string.
    Above it nothing is published (exit code 65). Absent: only measured."""


class RunPolicy(Manifest):
    """How the cluster runs it; a local run ignores all of it."""

    suspend: StrictBool = False
    """True ends the worker pods and keeps what is done; false goes on from there. Suspended time
    counts for no deadline. May be changed at any time."""
    backoff_limit: Annotated[StrictInt, Field(ge=0, le=998)] = 3
    """Application failures after which the job fails: each ends an attempt, and the next one goes
    on from what is committed. Evictions and lost nodes do not count, exit codes 64 and 65 are
    never retried."""
    active_deadline_seconds: PositiveInt | None = None
    """Seconds that the job may run, all attempts together. Absent: no limit. May be changed."""
    pre_running_deadline_seconds: PositiveInt | None = None
    """Seconds that an attempt may wait until all its pods run; the failure says what held them.
    Absent: no limit. May be changed."""
    ttl_seconds_after_finished: NaturalInt | None = None
    """Seconds after the end when pods and other children are deleted; the job itself stays.
    Absent: never. May be changed."""


class JobSpec(Manifest):
    """What is asked for."""

    model: Model
    """The model to quantize."""
    calibration: Calibration | None = None
    """The texts that statistics are taken from. May be absent if nothing in the recipe needs
    data."""
    recipe: Recipe
    """What becomes of each linear of the model."""
    workers: Workers = Workers()
    """Who computes: how many pods and processes, and what a cluster should know of them."""
    output: Output
    """Where the result is published and in which formats."""
    checkpoint: Checkpoint = Checkpoint()
    """How much may be computed again after a crash."""
    evaluation: Evaluation | None = None
    """Compares the perplexity of the quantized model with the float model's before publishing.
    Absent: not measured."""
    run_policy: RunPolicy = RunPolicy()
    """How a cluster runs it: suspension, retries, deadlines, cleaning up."""


class Metadata(Manifest):
    """What a local run reads of an object's metadata: the name, which is a label of DNS."""

    # Names of children add up to 17 characters, and a pod's host name has at most 63.
    name: Annotated[str, Field(max_length=46, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    namespace: ShortText | None = None
    labels: Labels = Field(default_factory=dict)
    annotations: Annotated[dict[LabelKey, str], BeforeValidator(without_nulls)] = Field(
        default_factory=dict
    )


class QuantizationJob(Manifest):
    """A model to quantize: what becomes of it, by which workers, and where it is published."""

    api_version: Literal["quantfleet.io/v1alpha1"]
    kind: Literal["QuantizationJob"]
    metadata: Metadata
    spec: JobSpec
    """What is asked for. Immutable but for runPolicy's suspend, deadlines and ttl: delete the job
    and create another to change the rest."""


def resolve(job: QuantizationJob) -> QuantizationJob:
    """The job with every value that depends on others filled in; a second call changes nothing.

    It expects a job that follows `rules.check`, as every job of `loading` does.
    """
    spec = job.spec.model_copy(update={"recipe": resolved_recipe(job.spec.recipe)})
    return job.model_copy(update={"spec": spec})
