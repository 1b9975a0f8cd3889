"""UTF-8 and JSON of files that users bring, with errors that say where in the file.

Used by `source`, `headers` and `texts`. `field` names the file (and line) in the error.
"""

import json
from typing import Any

from quantfleet_api.errors import InvalidInput


def utf8(data: bytes, *, field: str, offset: int = 0) -> str:
    """The text of `data`, which starts at byte `offset` of its file."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = data[error.start : error.start + 1].hex()
        place = f"byte 0x{wrong} at offset {offset + error.start}"
        raise InvalidInput(field, place, "must be UTF-8") from error


def json_value(text: str, *, field: str) -> Any:
    """The value that `text` spells; a key that comes twice in one object is an error."""
    try:
        return json.loads(text, object_pairs_hook=_unique_pairs)
    except _DuplicateKey as error:
        raise InvalidInput(field, error.key, "a JSON key must not come twice") from error
    except RecursionError as error:
        raise InvalidInput(field, "nesting too deep", "must be valid JSON") from error
    except ValueError as error:
        raise InvalidInput(field, str(error), "must be valid JSON") from error


def json_object(data: bytes, *, field: str) -> dict[str, Any]:
    """The JSON object that a whole file spells."""
    value = json_value(utf8(data, field=field), field=field)
    if not isinstance(value, dict):
        raise InvalidInput(field, type(value).__name__, "must be a JSON object")
    return value


class _DuplicateKey(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKey(next(key for key in keys if keys.count(key) > 1))
    return result
