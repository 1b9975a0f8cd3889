"""What a manifest may say about worker pods: an allow-list, not a pod template.

Whoever may create a QuantizationJob creates pods, so nothing here mounts host paths, raises
privileges or picks a service account. A local run ignores all of it. Field meanings are those of
the Kubernetes API of the same names.
"""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from quantfleet_api.fields import LongText, Manifest, NaturalInt, ShortText

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
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
Annotations = Annotated[
    dict[LabelKey, Annotated[str, Field(max_length=4096)]], Field(max_length=64)
]
Quantity = Annotated[
    str,
    Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"),
]
"""An amount such as "500m", "16Gi" or "4", always a string."""

Quantities = Annotated[dict[LabelKey, Quantity], Field(max_length=32)]
Namespaces = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=63)], ...], Field(max_length=64)
]
Weight = Annotated[StrictInt, Field(ge=1, le=100)]


class SecretName(Manifest):
    """A Secret of the job's namespace."""

    name: ShortText


class Resources(Manifest):
    """Requests and limits of the worker container."""

    requests: Quantities = Field(default_factory=dict)
    limits: Quantities = Field(default_factory=dict)


class Toleration(Manifest):
    """A taint that worker pods bear."""

    key: Annotated[str, Field(max_length=317)] = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, Field(max_length=63)] = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: NaturalInt | None = None


class EnvironmentVariable(Manifest):
    """A variable of the worker container; the value is literal."""

    name: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=4096)] = ""


class Requirement(Manifest):
    """A condition on a label of nodes."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=256)] = ()


Requirements = Annotated[tuple[Requirement, ...], Field(max_length=64)]


class NodeSelectorTerm(Manifest):
    """Conditions on a node that hold together."""

    match_expressions: Requirements = ()
    match_fields: Requirements = ()


class NodeSelector(Manifest):
    """Terms of which one must hold."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=32)]


class PreferredNodes(Manifest):
    """A term that adds `weight` to a node's score."""

    weight: Weight
    preference: NodeSelectorTerm


class NodeAffinity(Manifest):
    """Which nodes."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=32)
    ] = ()


class LabelRequirement(Manifest):
    """A condition on a label of pods or namespaces."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[LabelValue, ...], Field(max_length=256)] = ()


class LabelSelector(Manifest):
    """Conditions on labels that hold together."""

    match_labels: Labels = Field(default_factory=dict)
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=64)] = ()


class PodAffinityTerm(Manifest):
    """Other pods, and the node label whose value says what "together" means."""

    label_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    namespaces: Namespaces = ()
    topology_key: LabelKey


class PreferredPods(Manifest):
    """A term that adds `weight` to a node's score."""

    weight: Weight
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Manifest):
    """Next to which pods, or away from which."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], Field(max_length=32)
    ] = ()
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredPods, ...], Field(max_length=32)
    ] = ()


class Affinity(Manifest):
    """Where worker pods go."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class PodOptions(Manifest):
    """The cluster-only part of `spec.workers`."""

    image: LongText | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: Annotated[tuple[SecretName, ...], Field(max_length=16)] = ()
    device_resource_name: LabelKey | None = None  # an extended resource such as a vendor's "x/y"
    devices_per_worker: Annotated[StrictInt, Field(ge=0, le=64)] = 0
    resources: Resources | None = None
    node_selector: Labels = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=64)] = ()
    affinity: Affinity | None = None
    priority_class_name: ShortText | None = None
    labels: Labels = Field(default_factory=dict)
    annotations: Annotations = Field(default_factory=dict)
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=256)] = ()
    shared_memory: Quantity | None = None
