"""The status of a QuantizationJob: what the operator and the status server say about it.

Written by the operator (all but `progress`) and by the status server (`progress` alone), each as
a server-side apply of its own fields; read by users, the command line and the web page. Conditions
are the interface, `phase` is derived from them for people. Times are RFC 3339 in UTC, by the clock
of the writer; every string and list has a maximum, as the API server asks.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from quantfleet_api.fields import Manifest, NaturalInt
from quantfleet_api.progress import Stage

OPERATOR_FIELD_MANAGER = "quantfleet-operator"
SERVER_FIELD_MANAGER = "quantfleet-server"
"""Names of the two writers; never renamed, because the API server tells their fields by them."""

MOST_MESSAGE = 2048
"""Longest message of a condition or a failure, in characters."""


class Phase(StrEnum):
    """One word for the state of a job, for people; programs read conditions."""

    PENDING = "Pending"
    STARTING = "Starting"
    CALIBRATING = "Calibrating"
    PUBLISHING = "Publishing"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """What a condition is about; at most one of Complete and Failed is ever True."""

    ACCEPTED = "Accepted"
    SUSPENDED = "Suspended"
    WORKERS_READY = "WorkersReady"
    PROGRESSING = "Progressing"
    OUTPUT_VERIFIED = "OutputVerified"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Cause(StrEnum):
    """Why an attempt ended, as far as it decides what comes next; the worst comes first."""

    PERMANENT = "Permanent"
    """Exit code 64 or 65: never tried again."""
    DISRUPTION = "Disruption"
    """Eviction, preemption, a lost node, a deleted pod or Job: counted apart, tried again."""
    APPLICATION = "Application"
    """Out of memory, or any other exit code: counted against `backoffLimit`."""
    UNKNOWN = "Unknown"
    """Only collateral exits (75, 137, 143) or nothing was seen: counted as Application."""


class Reported(Manifest):
    """A part of a status; what another version of a writer added is passed over when read."""

    model_config = ConfigDict(extra="ignore")


Time = Annotated[
    str,
    Field(
        max_length=32,
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$",
        json_schema_extra={"format": "date-time"},
    ),
]
Reason = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
Message = Annotated[str, Field(max_length=MOST_MESSAGE)]
ObjectName = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]
Generation = Annotated[int, Field(ge=0, le=2**63 - 1)]
Attempt = Annotated[int, Field(ge=0, le=999)]
Digest = Annotated[str, Field(max_length=80, pattern=r"^sha256:[0-9a-f]{64}$")]


class Condition(Reported):
    """One fact about the job, in the form of all Kubernetes conditions."""

    type: ConditionType
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Reason
    """One CamelCase word that programs may read."""
    message: Message = ""
    """A sentence for people."""
    last_transition_time: Time
    """When `status` last changed; a new reason alone does not count."""
    observed_generation: Generation = 0
    """The metadata.generation that this condition speaks of."""


class Restarts(Reported):
    """How many new attempts were started, by what ended the one before."""

    application: Count = 0
    """After failures of the program; at most `backoffLimit`."""
    disruption: Count = 0
    """After evictions, preemptions, lost nodes and deleted pods; unlimited."""


class WorkerCounts(Reported):
    """The pods of the present attempt, as its Job counts them."""

    desired: Count = 0
    """Pods that the gang consists of."""
    active: Count = 0
    """Pods that are not finished."""
    ready: Count = 0
    """Pods that run and are ready."""
    succeeded: Count = 0
    """Pods that exited with 0."""
    failed: Count = 0
    """Pods that failed or were stopped."""
    failed_indexes: Annotated[str, Field(max_length=1024)] = ""
    """Indexes of pods seen to fail, such as 1,3-5."""


class JobReference(Reported):
    """The batch/v1 Job of the present attempt."""

    name: ObjectName
    """Name of the Job."""
    uid: Annotated[str, Field(max_length=64)]
    """UID of the Job; it was seen to exist, so when it is gone it was deleted."""


class Failure(Reported):
    """The worst that was seen of an attempt: the pod at its root and how it ended."""

    attempt: Attempt
    """The attempt that it ended or will end."""
    cause: Cause
    """What decides whether it is tried again."""
    reason: Reason
    """For example OOMKilled, PodDeleted, NodeLost, GateNotMet."""
    index: Count | None = None
    """Completion index of the pod."""
    pod_name: ObjectName | None = None
    """Name of the pod."""
    node_name: ObjectName | None = None
    """Node that the pod ran on."""
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Exit code of the worker."""
    message: Message = ""
    """What the worker said at its end, or what happened to its pod."""
    finished_time: Time
    """When the pod ended, or when it was seen to be doomed."""


class PublishedOutput(Reported):
    """What was published; absent until the job is complete."""

    path: Annotated[str, Field(max_length=1280)]
    """Claim and folder, as <claimName>/<path>."""
    digest: Digest | None = None
    """Digest of the manifest, which lists the digest of every file."""
    size_bytes: Bytes | None = None
    """Sum of all files, in bytes."""
    file_count: Count | None = None
    """Number of files."""
    warnings: Count | None = None
    """Number of warnings; the report beside the output names them."""


class ReportedProgress(Reported):
    """What the workers last reported; it shows, it never decides."""

    attempt: Attempt
    """The attempt that reported."""
    stage: Stage
    """What the gang is doing."""
    layers_completed: NaturalInt = 0
    """Layers that are committed."""
    total_layers: NaturalInt = 0
    """Layers of the model; embedding and head count."""
    percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Share of the work, in percent."""
    samples_processed: NaturalInt = 0
    """Samples done in the present pass, over all ranks."""
    total_samples: NaturalInt = 0
    """Samples of a pass."""
    estimated_remaining_seconds: NaturalInt | None = None
    """Estimate of the time that is left, in seconds."""
    last_update_time: Time
    """When the last report came in, by the server's clock."""


class JobStatus(Reported):
    """The whole status. A status with Complete or Failed True is final."""

    observed_generation: Generation = 0
    """The metadata.generation that the operator last acted on."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = ()
    """What holds; one entry a type."""
    phase: Phase | None = None
    """One word for people, derived from conditions and progress."""
    attempt: Attempt = 0
    """Number of the present attempt; 0 before the first. It never decreases."""
    restarts: Restarts = Restarts()
    """New attempts, by cause."""
    workers: WorkerCounts = WorkerCounts()
    """Pods of the present attempt."""
    worker_image: Annotated[str, Field(max_length=1024)] | None = None
    """Image of all attempts, fixed when the first began: another version of the engine could not
    go on with the work of this one."""
    job_ref: JobReference | None = None
    """Job of the present attempt; absent until it exists."""
    start_time: Time | None = None
    """When the first attempt was decided."""
    attempt_start_time: Time | None = None
    """When the present attempt was decided."""
    not_before: Time | None = None
    """Back-off: the present attempt's pods are not created before this."""
    waiting_since: Time | None = None
    """Since when workers are waited for; preRunningDeadlineSeconds counts from here. Absent once
    all were ready, and while suspended."""
    active_since: Time | None = None
    """Since when activeDeadlineSeconds is counted; absent while it stops."""
    active_seconds: Bytes = 0
    """Seconds counted towards activeDeadlineSeconds before `activeSince`."""
    completion_time: Time | None = None
    """When the job became Complete or Failed; the ttl counts from here."""
    last_failure: Failure | None = None
    """The worst that was seen of the latest attempt that failed."""
    output: PublishedOutput | None = None
    """What was published."""
    progress: ReportedProgress | None = None
    """What the workers last reported."""
