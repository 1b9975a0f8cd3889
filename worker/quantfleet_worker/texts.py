"""Texts of calibration and evaluation files, checked one by one.

Called through `data`. A file's suffix decides how it is read:

    .jsonl    one JSON object a line, the text under the text field; blank lines are skipped
    .json     a list of such objects, or of strings where the text field is `text`
    .parquet  one text a row, the text field is the column
    .txt      one text a line, only where the text field is `text`; blank lines are skipped

The text field `messages` holds chats, lists of {"role", "content"}; any other holds strings.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from quantfleet_api.errors import InputUnreadable, InvalidInput
from quantfleet_worker.json_text import json_value, utf8

Message = dict[str, Any]
Text = str | tuple[Message, ...]

DEFAULT_FIELD, CHAT_FIELD = "text", "messages"
_UTF8_MARK = b"\xef\xbb\xbf"


def load_texts(
    path: Path, *, text_field: str = DEFAULT_FIELD, field: str = "spec.calibration.source"
) -> list[Text]:
    """Every text of the file, in file order; `field` names the manifest's field in errors."""
    readers = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet, ".txt": _txt}
    if path.suffix not in readers:
        raise InvalidInput(field, path.name, f"must end in {', '.join(readers)}")
    where = f"{field}: {path}"
    try:
        texts = [
            _text(value, text_field, field=place)
            for place, value in readers[path.suffix](path, text_field, where)
        ]
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InvalidInput(field, path, "must be an existing file") from error
    except OSError as error:
        raise InputUnreadable(f"{path}: {error.strerror or error}") from error
    if not texts:
        raise InvalidInput(field, path, "must hold at least one text")
    return texts


def _jsonl(path: Path, text_field: str, where: str) -> Iterator[tuple[str, Any]]:
    for place, line in _lines(path, where):
        yield place, _member(json_value(line, field=place), text_field, field=place)


def _txt(path: Path, text_field: str, where: str) -> Iterator[tuple[str, Any]]:
    if text_field != DEFAULT_FIELD:
        raise InvalidInput(where, text_field, f"text field of a .txt must be {DEFAULT_FIELD}")
    yield from _lines(path, where)


def _lines(path: Path, where: str) -> Iterator[tuple[str, str]]:
    """Place and content of each line that is not blank; only line feeds end a line."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{where}, line {number}"
            content = line.removeprefix(_UTF8_MARK) if number == 1 else line
            text = utf8(content, field=place, offset=offset + len(line) - len(content)).strip()
            offset += len(line)
            if text:
                yield place, text


def _json(path: Path, text_field: str, where: str) -> Iterator[tuple[str, Any]]:
    data = path.read_bytes()
    content = data.removeprefix(_UTF8_MARK)
    text = utf8(content, field=where, offset=len(data) - len(content))
    if not text.strip():
        raise InvalidInput(where, "an empty file", "must hold a JSON list")
    items = json_value(text, field=where)
    if not isinstance(items, list):
        raise InvalidInput(where, type(items).__name__, "must be a JSON list of objects or strings")
    for number, item in enumerate(items, start=1):
        place = f"{where}, item {number}"
        plain = isinstance(item, str) and text_field == DEFAULT_FIELD
        yield place, item if plain else _member(item, text_field, field=place)


def _parquet(path: Path, text_field: str, where: str) -> Iterator[tuple[str, Any]]:
    # Only this suffix needs pyarrow, which takes long to import and some images lack.
    import pyarrow
    import pyarrow.parquet

    path.open("rb").close()  # raises what is wrong with the path, whatever pyarrow makes of it
    try:
        with pyarrow.parquet.ParquetFile(str(path)) as file:
            columns = file.schema_arrow.names
            if text_field not in columns:
                rule = f"must have the column {text_field!r}"
                raise InvalidInput(where, f"columns {', '.join(columns)}", rule)
            number = 0
            for batch in file.iter_batches(columns=[text_field]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield f"{where}, row {number}", value
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InvalidInput(where, reason, "must be a Parquet file") from error


def _member(item: object, text_field: str, *, field: str) -> object:
    if not isinstance(item, dict):
        raise InvalidInput(field, type(item).__name__, "must be a JSON object")
    if text_field not in item:
        raise InvalidInput(
            field, f"fields {', '.join(item)}", f"must have the field {text_field!r}"
        )
    return item[text_field]


def _text(value: object, text_field: str, *, field: str) -> Text:
    if text_field == CHAT_FIELD:
        return _messages(value, field=field)
    if not isinstance(value, str):
        raise InvalidInput(field, _kind(value), f"{text_field!r} must be a string")
    _require_unicode([value], field=field)
    return value


def _messages(value: object, *, field: str) -> tuple[Message, ...]:
    rule = "'messages' must be a list of objects with strings role and content"
    if not isinstance(value, list) or not value:
        raise InvalidInput(field, _kind(value), rule)
    for number, message in enumerate(value, start=1):
        place = f"{field}, message {number}"
        if not isinstance(message, dict):
            raise InvalidInput(place, _kind(message), rule)
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise InvalidInput(f"{place}, {key}", _kind(message.get(key)), rule)
        _require_unicode([message["role"], message["content"]], field=place)
    return tuple(value)


def _require_unicode(texts: Iterable[str], *, field: str) -> None:
    """JSON can spell half of a surrogate pair, which no tokenizer takes."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            lone = f"\\u{ord(text[error.start]):04x} at character {error.start}"
            raise InvalidInput(field, lone, "must be valid Unicode") from error


def _kind(value: object) -> str:
    return "null" if value is None else "an empty list" if value == [] else type(value).__name__
