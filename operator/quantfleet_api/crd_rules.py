"""Rules of a job in CEL, for the API server: those of `rules.py`, and how a job may change.

Called by `crd_schema`, which adds them to the schema of the model that they are named after. Rules
of single fields stand beside the fields themselves. A rule that is broken shows its message as it
is, so each message says what to change.
"""

from collections.abc import Sequence

from quantfleet_api.fields import OneOf
from quantfleet_api.names import MOST_NAME
from quantfleet_api.recipe import STATIC, WEIGHT_ONLY
from quantfleet_api.status import ConditionType

Rule = dict[str, str]

MUTABLE = frozenset(
    {
        "runPolicy",
        "suspend",
        "activeDeadlineSeconds",
        "preRunningDeadlineSeconds",
        "ttlSecondsAfterFinished",
    }
)
"""Fields of spec and of spec.runPolicy that may change after a job was created."""

NOT_FINAL = frozenset({"observedGeneration"})
"""Fields of a status that may change after the end."""


def rules_of(model: str, fields: Sequence[str]) -> list[Rule]:
    """The rules of a model, given the names of its fields in the schema."""
    if is_union(model):
        return [_exactly_one(fields)]
    rules = list(_RULES.get(model, ()))
    if model in ("JobSpec", "RunPolicy"):
        rules += [_immutable(field) for field in fields if field not in MUTABLE]
    if model == "JobStatus":
        rules.append(_final([field for field in fields if field not in NOT_FINAL]))
    return rules


def is_union(model: str) -> bool:
    """Whether exactly one member of the model is given."""
    return model in {union.__name__ for union in OneOf.__subclasses__()}


def _rule(rule: str, message: str) -> Rule:
    return {"rule": rule, "message": message}


def _exactly_one(members: Sequence[str]) -> Rule:
    given = ", ".join(f"has(self.{member})" for member in members)
    return _rule(f"[{given}].exists_one(given, given)", f"give exactly one of {', '.join(members)}")


def _unchanged(field: str) -> str:
    """That a field of the rule's own object is as before.

    On the parent, because a rule on the field itself would not see it being removed and added; with
    `has` on both sides, because an absent field cannot be compared.
    """
    return (
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    )


def _immutable(field: str) -> Rule:
    message = f"{field} cannot be changed: delete the job and create it again"
    return _rule(_unchanged(field), message)


def _some(status: str, *types: ConditionType) -> str:
    """The conditions of `status` that are True and of one of these types."""
    names = ", ".join(f"'{name}'" for name in types)
    return f"{status}.conditions.filter(c, c.type in [{names}] && c.status == 'True')"


_ENDS = (ConditionType.COMPLETE, ConditionType.FAILED)


def _final(fields: Sequence[str]) -> Rule:
    ended = f"has(oldSelf.conditions) && size({_some('oldSelf', *_ENDS)}) > 0"
    same = " && ".join(f"({_unchanged(field)})" for field in fields)
    return _rule(f"!({ended}) || ({same})", "the job has ended: its status is final")


def _apart(field: str) -> Rule:
    """That publishing does not rename away what is read; see `rules._check_output_apart`."""
    source = f"self.{field}.source.pvc"
    return _rule(
        ("" if field == "model" else f"!has(self.{field}) || ")
        + f"!has({source}) || {source}.claimName != self.output.pvc.claimName"
        " || ['/', '.work/', '.rejected/'].all(end,"
        f" !({source}.path + '/').startsWith(self.output.pvc.path + end))",
        f"output.pvc.path must not hold what {field}.source reads, neither must <path>.work nor"
        " <path>.rejected: choose another path",
    )


_STATIC_SCHEMES = f"[{', '.join(repr(name) for name in sorted(STATIC))}]"
_WEIGHT_ONLY_SCHEMES = f"[{', '.join(repr(name) for name in sorted(WEIGHT_ONLY))}]"


def _is_static(recipe: str) -> str:
    overridden = f"{recipe}.overrides.exists(entry, entry.scheme in {_STATIC_SCHEMES})"
    return f"{recipe}.scheme in {_STATIC_SCHEMES} || (has({recipe}.overrides) && {overridden})"


_NEEDS_DATA = (
    "self.recipe.weights.method == 'GPTQ'"
    " || (has(self.recipe.transforms) && size(self.recipe.transforms) > 0)"
    f" || {_is_static('self.recipe')}"
)

_RULES: dict[str, tuple[Rule, ...]] = {
    "QuantizationJob": (
        _rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must start with a letter, end with a letter or digit, and hold only"
            " lower-case letters, digits and '-': host names of workers are made from it",
        ),
        _rule(
            f"size(self.metadata.name) <= {MOST_NAME}",
            f"metadata.name must have at most {MOST_NAME} characters: host names of workers are"
            " made from it",
        ),
        _rule("!has(oldSelf.status) || has(self.status)", "status cannot be removed"),
    ),
    "JobSpec": (
        _rule(
            f"has(self.calibration) || !({_NEEDS_DATA})",
            "calibration is required: GPTQ, smoothQuant and the scheme W8A8 need calibration data",
        ),
        _apart("model"),
        _apart("calibration"),
        _apart("evaluation"),
    ),
    "Recipe": (
        _rule(
            "!has(self.weights.groupSize) || self.weights.groupSize == 0"
            f" || self.scheme in {_WEIGHT_ONLY_SCHEMES}",
            "weights.groupSize must be 0 with the schemes W8A8 and W8A8Dynamic, whose weights have"
            " one scale a row",
        ),
        _rule(
            f"self.weights.symmetric || self.scheme in {_WEIGHT_ONLY_SCHEMES}",
            "weights.symmetric must be true with the schemes W8A8 and W8A8Dynamic, whose weights"
            " are symmetric",
        ),
        _rule(
            f"!has(self.activations) || {_is_static('self')}",
            "activations are only allowed with the static scheme W8A8: remove them, or choose it",
        ),
        _rule(
            "!has(self.transforms) || size(self.transforms) <= 1",
            "transforms must hold smoothQuant at most once",
        ),
    ),
    "Weights": (
        _rule(
            "!has(self.gptq) || self.method == 'GPTQ'",
            "gptq is only allowed with method GPTQ: remove it, or choose that method",
        ),
    ),
    "Calibration": (
        _rule("self.minTokens <= self.sequenceLength", "minTokens must be at most sequenceLength"),
    ),
    "Workers": (
        _rule(
            "self.devicesPerWorker == 0 || has(self.deviceResourceName)",
            "deviceResourceName is required with devicesPerWorker above 0",
        ),
        _rule(
            "!has(self.deviceResourceName) || self.devicesPerWorker > 0",
            "devicesPerWorker must be at least 1 with deviceResourceName",
        ),
        _rule(
            "self.devicesPerWorker == 0 || self.processesPerWorker <= self.devicesPerWorker",
            "processesPerWorker must be at most devicesPerWorker, since each process has its own"
            " device",
        ),
    ),
    "JobStatus": (
        _rule(
            "!has(oldSelf.attempt) || (has(self.attempt) && self.attempt >= oldSelf.attempt)",
            "attempt cannot decrease",
        ),
        _rule(
            f"!has(self.conditions) || size({_some('self', *_ENDS)}) <= 1",
            "a job cannot be both Complete and Failed",
        ),
    ),
}
