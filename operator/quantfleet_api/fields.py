"""The building blocks of manifest fields: bounded strings, lists, integers and decimal strings.

Used by the manifest's models only. Every string and list has a maximum, because the cluster's
API server stores these objects and refuses schemas without one; fractions are decimal strings,
because floats do not survive the way through YAML, JSON and Go unchanged.
"""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


class Manifest(BaseModel):
    """A part of a manifest: camelCase in YAML, snake_case in Python, immutable, no extra field."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
    )


class OneOf(Manifest):
    """A part of a manifest of which exactly one member is given."""


def broken(rule: str) -> PydanticCustomError:
    """The error of a value that breaks `rule` ("must be ...")."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def decimal_between(
    low: str, high: str, *, low_open: bool = False, high_open: bool = False
) -> AfterValidator:
    """Accepts decimal strings within a range; the string itself stays as it was written."""
    opening, closing = ("above" if low_open else "from"), ("below" if high_open else "to")
    rule = f"must be a decimal number {opening} {low} {closing} {high}"

    def check(text: str) -> str:
        number = Decimal(text)
        low_good = number > Decimal(low) if low_open else number >= Decimal(low)
        high_good = number < Decimal(high) if high_open else number <= Decimal(high)
        if not (low_good and high_good):
            raise broken(rule)
        return text

    return AfterValidator(check)


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


def relative_path(value: str) -> str:
    """A path inside a claim, in its only spelling; "" is the claim itself."""
    segments = value.split("/") if value else []
    if any(part in ("", ".", "..") for part in segments):
        raise broken("must be a relative path without empty, '.' or '..' segments")
    if not value.isprintable():
        raise broken("must hold printable characters only")
    return value


ClaimPath = Annotated[str, Field(max_length=1024), AfterValidator(relative_path)]
ClaimName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]


def distinct(what: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """A check that no value of a list is there twice."""

    def check(values: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(values)) != len(values):
            raise broken(f"must not name a {what} twice")
        return values

    return check
