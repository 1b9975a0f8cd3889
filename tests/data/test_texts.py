"""Files of texts: what each suffix holds, and what is said about a file that is wrong."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_api.errors import InputUnreadable, InvalidInput
from quantfleet_worker.texts import load_texts

TEXTS = ["first", "second \u00e9\u4e2d", "", "line\u2028separator"]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def write(path: Path, values: list[Any], *, field: str = "text") -> Path:
    if path.suffix == ".jsonl":
        lines = [json.dumps({field: value, "other": 1}) for value in values]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps([{field: value} for value in values]), encoding="utf-8")
    else:
        pyarrow.parquet.write_table(pyarrow.table({"n": range(len(values)), field: values}), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("field", ["text", "inputs_pretokenized", "my field"])
def test_strings_come_in_file_order_from_every_kind_of_file(
    tmp_path: Path, suffix: str, field: str
) -> None:
    path = write(tmp_path / f"data{suffix}", TEXTS, field=field)
    assert load_texts(path, text_field=field) == TEXTS


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_chats_come_as_lists_of_messages(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"data{suffix}", [CHAT, CHAT[:1]], field="messages")
    assert load_texts(path, text_field="messages") == [tuple(CHAT), tuple(CHAT[:1])]


def test_a_json_list_may_hold_plain_strings(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(["a", {"text": "b"}]))
    assert load_texts(path) == ["a", "b"]


def test_a_txt_is_one_text_a_line_and_blank_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes("\ufeffone\r\n\n  two \u2028 still two\n \t\nthree".encode())
    assert load_texts(path) == ["one", "two \u2028 still two", "three"]


def test_blank_lines_and_a_byte_order_mark_in_jsonl_are_no_texts(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}')
    assert load_texts(path) == ["a", "b"]


@given(texts=st.lists(st.text(), min_size=1))
def test_any_unicode_survives_jsonl(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}, ensure_ascii=False) for t in texts), "utf-8")
    assert load_texts(path) == texts


BROKEN: dict[str, tuple[str, bytes, str, str]] = {
    "empty-jsonl": ("d.jsonl", b"", "text", "must hold at least one text, got"),
    "blank-jsonl": ("d.jsonl", b"\n\n \n", "text", "must hold at least one text"),
    "empty-txt": ("d.txt", b"\n", "text", "must hold at least one text"),
    "empty-json": ("d.json", b"", "text", "d.json: must hold a JSON list"),
    "empty-list": ("d.json", b"[]", "text", "must hold at least one text"),
    "suffix": ("d.csv", b"a", "text", "must end in .jsonl, .json, .parquet, .txt, got 'd.csv'"),
    "no-suffix": ("data", b"a", "text", "must end in"),
    "bad-json": ("d.jsonl", b'{"text": "a"}\n{"text": b}', "text", "line 2: must be valid JSON"),
    "key-twice": ("d.jsonl", b'{"text": "a", "text": "b"}', "text", "line 1: a JSON key must not"),
    "not-object": ("d.jsonl", b'"a"', "text", "line 1: must be a JSON object, got 'str'"),
    "no-field": (
        "d.jsonl",
        b'{"text": "a"}\n\n{"txt": "b"}',
        "text",
        "line 3: must have the field 'text', got 'fields txt'",
    ),
    "null": ("d.jsonl", b'{"text": null}', "text", "line 1: 'text' must be a string, got 'null'"),
    "number": ("d.json", b'[{"text": 5}]', "text", "item 1: 'text' must be a string, got 'int'"),
    "not-utf8": (
        "d.jsonl",
        b'{"text": "a"}\n{"text": "\xe9"}',
        "text",
        "line 2: must be UTF-8, got 'byte 0xe9 at offset 24'",
    ),
    "not-utf8-after-mark": (
        "d.txt",
        b"\xef\xbb\xbfab\xff",
        "text",
        "line 1: must be UTF-8, got 'byte 0xff at offset 5'",
    ),
    "not-utf8-json": ("d.json", b'["\x80"]', "text", "must be UTF-8, got 'byte 0x80 at offset 2'"),
    "surrogate": (
        "d.jsonl",
        b'{"text": "ab\\ud800"}',
        "text",
        "line 1: must be valid Unicode, got '\\\\ud800 at character 2'",
    ),
    "object": ("d.json", b'{"text": "a"}', "text", "must be a JSON list of objects or strings"),
    "strings-of-field": ("d.json", b'["a"]', "prompt", "item 1: must be a JSON object, got 'str'"),
    "txt-field": ("d.txt", b"a", "messages", "text field of a .txt must be text"),
    "chat-string": ("d.jsonl", b'{"messages": "a"}', "messages", "'messages' must be a list"),
    "chat-empty": ("d.jsonl", b'{"messages": []}', "messages", "got 'an empty list'"),
    "chat-no-role": (
        "d.jsonl",
        b'{"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}',
        "messages",
        "line 1, message 2, role: 'messages' must be a list",
    ),
    "chat-parts": (
        "d.jsonl",
        b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
        "messages",
        "message 1, content: 'messages' must be",
    ),
    "chat-item": ("d.jsonl", b'{"messages": ["a"]}', "messages", "message 1: 'messages' must be"),
    "not-parquet": ("d.parquet", b"PAR1 but no more", "text", "d.parquet: must be a Parquet file"),
    "empty-parquet": ("d.parquet", b"", "text", "d.parquet: must be a Parquet file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_file_is_named_with_place_and_rule(tmp_path: Path, case: str) -> None:
    name, content, field, message = BROKEN[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        load_texts(tmp_path / name, text_field=field)
    assert message in str(caught.value)
    assert str(caught.value).startswith("spec.calibration.source")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", None], "row 2: 'text' must be a string, got 'null'"),
        ([1, 2], "row 1: 'text' must be a string, got 'int'"),
        ([b"a"], "row 1: 'text' must be a string, got 'bytes'"),
    ],
)
def test_a_wrong_parquet_row_is_named(tmp_path: Path, values: list[Any], message: str) -> None:
    path = write(tmp_path / "d.parquet", values)
    with pytest.raises(InvalidInput) as caught:
        load_texts(path)
    assert message in str(caught.value)


def test_a_parquet_file_without_the_column_lists_what_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", ["a"], field="content")
    with pytest.raises(InvalidInput, match=r"have the column 'text', got 'columns n, content'"):
        load_texts(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".txt"])
def test_a_missing_file_and_a_folder_are_the_users_error(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InvalidInput, match=r"^spec\.evaluation\.source: must be an existing file"):
        load_texts(tmp_path / f"no{suffix}", field="spec.evaluation.source")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(InvalidInput, match="must be an existing file"):
        load_texts(tmp_path / f"folder{suffix}")


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".txt"])
def test_a_read_error_may_be_tried_again(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d{suffix}"
    path.symlink_to("/proc/self/mem")  # its first page: an I/O error
    with pytest.raises(InputUnreadable, match=rf"d{suffix}: Input/output error"):
        load_texts(path)
