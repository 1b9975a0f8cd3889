"""Turns what pydantic says about a manifest into one line for the person who wrote it.

Called by `loading`. Pydantic reports in the order of our models; the user reads from the top of
the document, so the error whose place comes first there is the one that is shown.
"""

import difflib
import sys
from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from quantfleet_api.errors import InvalidInput
from quantfleet_api.fields import OneOf

Location = tuple[int | str, ...]


class Absent(Enum):
    """The value of a field that is not there."""

    NOTHING = "nothing"

    def __str__(self) -> str:
        return self.value


_RULES = {
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "string_type": "must be a string (a number needs quotes)",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "string_unicode": "must be valid Unicode",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "rule": "{rule}",
}
"""What to say for each of pydantic's error types that these models can cause."""


def first_error(error: ValidationError, data: object, model: type[BaseModel]) -> InvalidInput:
    """The error of `data`, read as `model`, whose place comes first in the document."""
    details = min(error.errors(include_url=False), key=lambda item: _position(item["loc"], data))
    location = _user_location(details)
    if details["type"] == "missing":
        return InvalidInput(_path(location), Absent.NOTHING, _missing_rule(location, model))
    if details["type"] in ("extra_forbidden", "invalid_key"):
        rule = _unknown_rule(location, model)
        return InvalidInput(_path(location), details["input"], rule)
    template = _RULES.get(details["type"], details["msg"])
    return InvalidInput(
        _path(location), details["input"], template.format_map(details.get("ctx", {}))
    )


def _user_location(details: ErrorDetails) -> Location:
    """Without the marker that pydantic adds where a mapping's key is wrong."""
    location = details["loc"]
    return location[:-1] if location[-1:] == ("[key]",) else location


def _position(location: Location, data: object) -> tuple[int, ...]:
    """Where in the document: the index of each step; what is absent comes after its siblings.

    A whole comes after its parts, because its error may be only a consequence of theirs.
    """
    position = []
    for step in location:
        if isinstance(data, dict):
            keys = list(data)
            position.append(keys.index(step) if step in keys else len(keys))
            data = data.get(step)
        elif isinstance(data, (list, tuple)) and isinstance(step, int):
            position.append(step)
            data = data[step] if step < len(data) else None
    return (*position, sys.maxsize)


def _path(location: Location) -> str:
    """For example `spec.recipe.overrides[0].scheme`."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{_one_line(step)}"
    return text.removeprefix(".") or "manifest"


def _one_line(key: str) -> str:
    """A key as it is, or quoted where it would break the line."""
    return key if key.isprintable() else ascii(key)


def _missing_rule(location: Location, model: type[BaseModel]) -> str:
    parent = _model_at(location[:-1], model)
    if parent is not None and issubclass(parent, OneOf):
        return f"is required: give exactly one of {', '.join(_names(parent))}"
    return "is required"


def _unknown_rule(location: Location, model: type[BaseModel]) -> str:
    parent = _model_at(location[:-1], model)
    names = [] if parent is None else _names(parent)
    near = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
    if near:
        return f"unknown field, did you mean '{near[0]}'?"
    return f"unknown field, known are {', '.join(names)}"


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(location: Location, model: type[BaseModel]) -> type[BaseModel] | None:
    """The model that describes the mapping at `location`."""
    found: type[BaseModel] | None = model
    for step in location:
        if found is None or isinstance(step, int):
            continue  # an entry of a list has the model of the list
        fields = {field.alias or name: field for name, field in found.model_fields.items()}
        found = _model_in(fields[step].annotation) if step in fields else None
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model inside an annotation such as `tuple[Override, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in inner if model is not None), None)
