"""What a manifest may say about worker pods: an allow-list, not a pod template.

Whoever may create a QuantizationJob creates pods, so nothing here mounts host paths, raises
privileges or picks a service account. A local run ignores all of it. Field meanings are those of
the Kubernetes API of the same names.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictInt

from quantfleet_api.fields import (
    LongText,
    Manifest,
    NaturalInt,
    ShortText,
    list_map,
    without_nulls,
)

LabelKey = Annotated[
    str,
    Field(
        max_length=317,  # prefix of 253, a slash, a name of 63
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64), BeforeValidator(without_nulls)]
Annotations = Annotated[
    dict[LabelKey, Annotated[str, Field(max_length=4096)]],
    Field(max_length=64),
    BeforeValidator(without_nulls),
]
Quantity = Annotated[
    str,
    Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"),
]
"""An amount such as "500m", "16Gi" or "4", always a string."""

Quantities = Annotated[
    dict[LabelKey, Quantity], Field(max_length=32), BeforeValidator(without_nulls)
]
Namespaces = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=63)], ...], Field(max_length=64)
]
Weight = Annotated[StrictInt, Field(ge=1, le=100)]


class SecretName(Manifest):
    """A Secret of the job's namespace."""

    name: ShortText
    """Name of the Secret."""


class Resources(Manifest):
    """Requests and limits of the worker container."""

    requests: Quantities = Field(default_factory=dict)
    """What a node must have free, by resource, such as cpu: "4" or memory: 16Gi."""
    limits: Quantities = Field(default_factory=dict)
    """What the container may use at most, by resource. Above its memory it is killed."""


class Toleration(Manifest):
    """A taint that worker pods bear."""

    key: Annotated[str, Field(max_length=317)] = ""
    """The taint's key; empty, with operator Exists, is every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Whether the taint must have this value, or only this key."""
    value: Annotated[str, Field(max_length=63)] = ""
    """The taint's value; only with operator Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; empty is every effect."""
    toleration_seconds: NaturalInt | None = None
    """Seconds that a pod stays on a node with a NoExecute taint. Absent: for ever."""


class EnvironmentVariable(Manifest):
    """A variable of the worker container; the value is literal."""

    name: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable; each may be there once."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value, which is not expanded."""


class Requirement(Manifest):
    """A condition on a label of nodes."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the label's value and values relate."""
    values: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=256)] = ()
    """Values to compare with: some for In and NotIn, one number for Gt and Lt, else none."""


Requirements = Annotated[tuple[Requirement, ...], Field(max_length=64)]


class NodeSelectorTerm(Manifest):
    """Conditions on a node that hold together."""

    match_expressions: Requirements = ()
    """Conditions on labels of the node."""
    match_fields: Requirements = ()
    """Conditions on fields of the node, such as metadata.name."""


class NodeSelector(Manifest):
    """Terms of which one must hold."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=32)]
    """The terms."""


class PreferredNodes(Manifest):
    """A term that adds `weight` to a node's score."""

    weight: Weight
    """What a node's score gains if the preference holds."""
    preference: NodeSelectorTerm
    """The preference."""


class NodeAffinity(Manifest):
    """Which nodes."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """What a node must have."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=32)
    ] = ()
    """What a node had better have."""


class LabelRequirement(Manifest):
    """A condition on a label of pods or namespaces."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value and values relate."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=256)] = ()
    """Values to compare with: some for In and NotIn, else none."""


class LabelSelector(Manifest):
    """Conditions on labels that hold together."""

    match_labels: Labels = Field(default_factory=dict)
    """Labels with these values."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=64)] = ()
    """Further conditions."""


class PodAffinityTerm(Manifest):
    """Other pods, and the node label whose value says what "together" means."""

    label_selector: LabelSelector | None = None
    """Labels of the other pods. Absent: no pod."""
    namespace_selector: LabelSelector | None = None
    """Labels of their namespaces; {} is all namespaces."""
    namespaces: Namespaces = ()
    """Names of their namespaces. Absent, without namespaceSelector: the job's own."""
    topology_key: LabelKey
    """The node label whose equal values mean "together", such as kubernetes.io/hostname."""


class PreferredPods(Manifest):
    """A term that adds `weight` to a node's score."""

    weight: Weight
    """What a node's score gains if the term holds."""
    pod_affinity_term: PodAffinityTerm
    """The term."""


class PodAffinity(Manifest):
    """Next to which pods, or away from which."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], Field(max_length=32)
    ] = ()
    """What must hold."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredPods, ...], Field(max_length=32)
    ] = ()
    """What had better hold."""


class Affinity(Manifest):
    """Where worker pods go."""

    node_affinity: NodeAffinity | None = None
    """Which nodes."""
    pod_affinity: PodAffinity | None = None
    """Next to which pods."""
    pod_anti_affinity: PodAffinity | None = None
    """Away from which pods."""


class PodOptions(Manifest):
    """The cluster-only part of `spec.workers`."""

    image: LongText | None = None
    """Image of the worker container. Absent: the operator's default. Ignored by a local run, as
    are all fields below that say what a pod is."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. Absent: Always for the tag latest, else IfNotPresent."""
    image_pull_secrets: Annotated[tuple[SecretName, ...], Field(max_length=16)] = ()
    """Secrets, in the job's namespace, with which the image is pulled."""
    device_resource_name: LabelKey | None = None
    """The extended resource that a device is, such as huawei.com/Ascend910, huawei.com/npu or
    nvidia.com/gpu; goes with devicesPerWorker. Absent: workers compute on the CPU."""
    devices_per_worker: Annotated[StrictInt, Field(ge=0, le=64)] = 0
    """Devices a pod; goes with deviceResourceName."""
    resources: Resources | None = None
    """Requests and limits of the worker container besides devices."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=64)] = ()
    """Taints that worker pods bear."""
    affinity: Affinity | None = None
    """Where worker pods go."""
    priority_class_name: ShortText | None = None
    """PriorityClass of the worker pods."""
    labels: Labels = Field(default_factory=dict)
    """Labels that worker pods get besides our own, which cannot be changed."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations that worker pods get."""
    env: Annotated[
        tuple[EnvironmentVariable, ...],
        Field(max_length=256, json_schema_extra=list_map("name")),
    ] = ()
    """Environment of the worker container besides our own variables, which cannot be changed."""
    shared_memory: Quantity | None = None
    """Most that /dev/shm may hold, in memory, such as 16Gi. Absent: 1Gi, or 16Gi with devices."""
