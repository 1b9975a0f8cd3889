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

    type: Annotated[ConditionType, Field(description="What the condition is about.")]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether it holds.")]
    reason: Annotated[Reason, Field(description="One CamelCase word that programs may read.")]
    message: Annotated[Message, Field(description="A sentence for people.")] = ""
    last_transition_time: Annotated[
        Time, Field(description="When `status` last changed; a new reason alone does not count.")
    ]
    observed_generation: Annotated[
        Generation, Field(description="The metadata.generation that this condition speaks of.")
    ] = 0


class Restarts(Reported):
    """How many new attempts were started, by what ended the one before."""

    application: Annotated[
        Count, Field(description="After failures of the program; at most `backoffLimit`.")
    ] = 0
    disruption: Annotated[
        Count,
        Field(description="After evictions, preemptions, lost nodes and deleted pods; unlimited."),
    ] = 0


class WorkerCounts(Reported):
    """The pods of the present attempt, as its Job counts them."""

    desired: Annotated[Count, Field(description="Pods that the gang consists of.")] = 0
    active: Annotated[Count, Field(description="Pods that are not finished.")] = 0
    ready: Annotated[Count, Field(description="Pods that run and are ready.")] = 0
    succeeded: Annotated[Count, Field(description="Pods that exited with 0.")] = 0
    failed: Annotated[Count, Field(description="Pods that failed or were stopped.")] = 0
    failed_indexes: Annotated[
        str,
        Field(max_length=1024, description="Indexes of pods seen to fail, such as 1,3-5."),
    ] = ""


class JobReference(Reported):
    """The batch/v1 Job of the present attempt."""

    name: Annotated[ObjectName, Field(description="Name of the Job.")]
    uid: Annotated[
        str,
        Field(
            max_length=64,
            description="UID of the Job; it was seen to exist, so when it is gone it was deleted.",
        ),
    ]


class Failure(Reported):
    """The worst that was seen of an attempt: the pod at its root and how it ended."""

    attempt: Annotated[Attempt, Field(description="The attempt that it ended or will end.")]
    cause: Annotated[Cause, Field(description="What decides whether it is tried again.")]
    reason: Annotated[
        Reason, Field(description="For example OOMKilled, PodDeleted, NodeLost, GateNotMet.")
    ]
    index: Annotated[Count, Field(description="Completion index of the pod.")] | None = None
    pod_name: Annotated[ObjectName, Field(description="Name of the pod.")] | None = None
    node_name: Annotated[ObjectName, Field(description="Node that the pod ran on.")] | None = None
    exit_code: (
        Annotated[int, Field(ge=-(2**31), le=2**31 - 1, description="Exit code of the worker.")]
        | None
    ) = None
    message: Annotated[
        Message, Field(description="What the worker said at its end, or what happened to its pod.")
    ] = ""
    finished_time: Annotated[
        Time, Field(description="When the pod ended, or when it was seen to be doomed.")
    ]


class PublishedOutput(Reported):
    """What was published; absent until the job is complete."""

    path: Annotated[
        str, Field(max_length=1280, description="Claim and folder, as <claimName>/<path>.")
    ]
    digest: (
        Annotated[
            Digest,
            Field(description="Digest of the manifest, which lists the digest of every file."),
        ]
        | None
    ) = None
    size_bytes: Annotated[Bytes, Field(description="Sum of all files, in bytes.")] | None = None
    file_count: Annotated[Count, Field(description="Number of files.")] | None = None
    warnings: (
        Annotated[
            Count, Field(description="Number of warnings; the report beside the output names them.")
        ]
        | None
    ) = None


class ReportedProgress(Reported):
    """What the workers last reported; it shows, it never decides."""

    attempt: Annotated[Attempt, Field(description="The attempt that reported.")]
    stage: Annotated[Stage, Field(description="What the gang is doing.")]
    layers_completed: Annotated[NaturalInt, Field(description="Layers that are committed.")] = 0
    total_layers: Annotated[
        NaturalInt, Field(description="Layers of the model; embedding and head count.")
    ] = 0
    percent: Annotated[int, Field(ge=0, le=100, description="Share of the work, in percent.")] = 0
    samples_processed: Annotated[
        NaturalInt, Field(description="Samples done in the present pass, over all ranks.")
    ] = 0
    total_samples: Annotated[NaturalInt, Field(description="Samples of a pass.")] = 0
    estimated_remaining_seconds: (
        Annotated[NaturalInt, Field(description="Estimate of the time that is left, in seconds.")]
        | None
    ) = None
    last_update_time: Annotated[
        Time, Field(description="When the last report came in, by the server's clock.")
    ]


class JobStatus(Reported):
    """The whole status. A status with Complete or Failed True is final."""

    observed_generation: Annotated[
        Generation, Field(description="The metadata.generation that the operator last acted on.")
    ] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            description="What holds; one entry a type.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = ()
    phase: (
        Annotated[
            Phase, Field(description="One word for people, derived from conditions and progress.")
        ]
        | None
    ) = None
    attempt: Annotated[
        Attempt,
        Field(description="Number of the present attempt; 0 before the first. It never decreases."),
    ] = 0
    restarts: Annotated[Restarts, Field(description="New attempts, by cause.")] = Restarts()
    workers: Annotated[WorkerCounts, Field(description="Pods of the present attempt.")] = (
        WorkerCounts()
    )
    worker_image: (
        Annotated[
            str,
            Field(
                max_length=1024,
                description="Image of all attempts, fixed when the first began: another version of "
                "the engine could not go on with the work of this one.",
            ),
        ]
        | None
    ) = None
    job_ref: (
        Annotated[
            JobReference, Field(description="Job of the present attempt; absent until it exists.")
        ]
        | None
    ) = None
    start_time: Annotated[Time, Field(description="When the first attempt was decided.")] | None = (
        None
    )
    attempt_start_time: (
        Annotated[Time, Field(description="When the present attempt was decided.")] | None
    ) = None
    not_before: (
        Annotated[
            Time,
            Field(description="Back-off: the present attempt's pods are not created before this."),
        ]
        | None
    ) = None
    waiting_since: (
        Annotated[
            Time,
            Field(
                description="Since when workers are waited for; preRunningDeadlineSeconds counts "
                "from here. Absent once all were ready, and while suspended."
            ),
        ]
        | None
    ) = None
    active_since: (
        Annotated[
            Time,
            Field(
                description="Since when activeDeadlineSeconds is counted; absent while it stops."
            ),
        ]
        | None
    ) = None
    active_seconds: Annotated[
        Bytes,
        Field(description="Seconds counted towards activeDeadlineSeconds before `activeSince`."),
    ] = 0
    completion_time: (
        Annotated[
            Time,
            Field(description="When the job became Complete or Failed; the ttl counts from here."),
        ]
        | None
    ) = None
    last_failure: (
        Annotated[
            Failure, Field(description="The worst that was seen of the latest attempt that failed.")
        ]
        | None
    ) = None
    output: Annotated[PublishedOutput, Field(description="What was published.")] | None = None
    progress: (
        Annotated[ReportedProgress, Field(description="What the workers last reported.")] | None
    ) = None
