"""The building blocks of manifest fields: bounded strings, lists, integers and decimal strings.

Used by the manifest's models only. Every string and list has a maximum, because the cluster's
API server stores these objects and refuses schemas without one; fractions are decimal strings,
because floats do not survive the way through YAML, JSON and Go unchanged. A check that is a
Python function carries the same rule in CEL beside it, for the schema that a cluster enforces.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictInt,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Manifest(BaseModel):
    """A part of a manifest: camelCase in YAML, snake_case in Python, immutable, no extra field.

    The docstring below a field is its description in the cluster's schema (`kubectl explain`).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: object) -> object:
        """Drops known fields that are null, as the API server does before it looks at an object.

        An unknown field stays, null or not: it is a mistake in either case.
        """
        if not isinstance(data, dict):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


class OneOf(Manifest):
    """A part of a manifest of which exactly one member is given."""


def broken(rule: str) -> PydanticCustomError:
    """The error of a value that breaks `rule` ("must be ...")."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def in_cel(rule: str, message: str) -> dict[str, Any]:
    """The part of a field's schema that says in CEL what a check says in Python."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message}]}


@dataclass(frozen=True)
class DecimalBetween:
    """Accepts decimal strings within a range; the string itself stays as it was written."""

    low: str
    high: str
    low_open: bool = False
    high_open: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        above, below = (">" if self.low_open else ">="), ("<" if self.high_open else "<=")
        low, high = (f"double('{bound}')" for bound in (self.low, self.high))
        rule = f"double(self) {above} {low} && double(self) {below} {high}"
        return {**handler(schema), **in_cel(rule, self.rule)}

    @property
    def rule(self) -> str:
        """What a value must be, in words."""
        opening = "above" if self.low_open else "from"
        closing = "below" if self.high_open else "to"
        return f"must be a decimal number {opening} {self.low} {closing} {self.high}"

    def checked(self, text: str) -> str:
        """The text itself, if its number is within the range."""
        number, low, high = Decimal(text), Decimal(self.low), Decimal(self.high)
        low_good = number > low if self.low_open else number >= low
        high_good = number < high if self.high_open else number <= high
        if not (low_good and high_good):
            raise broken(self.rule)
        return text


def _quoted_decimal(value: object) -> object:
    rule = 'must be a decimal number in quotes, such as "0.5"'
    if not isinstance(value, str):
        raise broken(rule)
    try:
        finite = Decimal(value).is_finite()
    except InvalidOperation:
        finite = False
    if not finite:
        raise broken(rule)
    return value


DECIMAL_PATTERN = r"^(0|[1-9][0-9]*)(\.[0-9]+)?$"
DecimalString = Annotated[
    str, Field(max_length=16, pattern=DECIMAL_PATTERN), BeforeValidator(_quoted_decimal)
]
"""A fraction such as "0.5": no sign, no exponent."""


def integer_only(value: object) -> object:
    """Refuses booleans and floats where an integer is one of a few choices (0.0 equals 0)."""
    if isinstance(value, (bool, float)):
        raise broken("must be an integer")
    return value


PositiveInt = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
NaturalInt = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]

ShortText = Annotated[str, Field(min_length=1, max_length=253)]
LongText = Annotated[str, Field(min_length=1, max_length=1024)]


SEGMENT = r"([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)"
"""A step of a path: neither empty nor "." nor ".."; for the expressions of Python and of Go."""
RELATIVE = f"^({SEGMENT}(/{SEGMENT})*)?$"
INVISIBLE = (
    r"[\x00-\x1f\x7f-\xa0\xad\x{1680}\x{2000}-\x{200f}\x{2028}-\x{202f}\x{205f}-\x{206f}"
    r"\x{3000}\x{e000}-\x{f8ff}\x{feff}\x{fff0}-\x{fffb}\x{e0000}-\x{10ffff}]"
)
"""Control, formatting, private and spacing characters but for the space, as Go spells them.

A list instead of categories: those differ between the Unicode versions of Python and of Go.
"""
_RELATIVE = re.compile(RELATIVE.removesuffix("$") + r"\Z")
_INVISIBLE = re.compile(
    re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{found[1]:0>8}", INVISIBLE)
)
_SEGMENTS_RULE = "must be a relative path without empty, '.' or '..' segments"
_PRINTABLE_RULE = "must hold printable characters only"


def relative_path(value: str) -> str:
    """A path inside a claim, in its only spelling; "" is the claim itself."""
    if not _RELATIVE.match(value):
        raise broken(_SEGMENTS_RULE)
    if _INVISIBLE.search(value):
        raise broken(_PRINTABLE_RULE)
    return value


PATH_SCHEMA: dict[str, Any] = {
    "x-kubernetes-validations": [
        {"rule": f"self.matches(r'{RELATIVE}')", "message": _SEGMENTS_RULE},
        {"rule": f"!self.matches(r'{INVISIBLE}')", "message": _PRINTABLE_RULE},
    ]
}
ClaimPath = Annotated[
    str, Field(max_length=1024, json_schema_extra=PATH_SCHEMA), AfterValidator(relative_path)
]
ClaimName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]

DEFAULT_IN_CLUSTER = "default-in-cluster"
"""Marks, in a field's schema, a default of the cluster that a local run does not have."""

LIST_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
"""For a list whose values are distinct: the API server checks it, too."""


def list_map(*keys: str) -> dict[str, Any]:
    """For a list whose entries differ in `keys`: the API server checks it, too."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def without_nulls(value: object) -> object:
    """A mapping less its entries that are null: to the API server they are absent."""
    if not isinstance(value, dict):
        return value
    return {key: entry for key, entry in value.items() if entry is not None}


def distinct(what: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """A check that no value of a list is there twice."""

    def check(values: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(values)) != len(values):
            raise broken(f"must not name a {what} twice")
        return values

    return check
