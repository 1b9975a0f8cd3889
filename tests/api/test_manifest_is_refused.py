"""Whatever is wrong in a manifest is one line: full path, rule, value."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from quantfleet_api.errors import ExitCode, InvalidInput
from quantfleet_api.loading import parse_job
from refused_manifests import CAL, REC, SEVERAL_FIELDS, SINGLE_FIELD

FULL_JOB = (Path(__file__).parents[1] / "support" / "full-job.yaml").read_text()


@pytest.mark.parametrize(
    ("edits", "message"),
    SINGLE_FIELD + SEVERAL_FIELDS,
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_one_line_says_what_is_wrong(
    full: Callable[..., dict[str, Any]], edits: dict[str, object], message: str | None
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_job(full(edits))

    if message is None:  # long lists of what is known: only the place matters
        assert str(caught.value).startswith(next(iter(edits)))
    else:
        assert str(caught.value) == message
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_first_error_of_the_document_is_shown(full: Callable[..., dict[str, Any]]) -> None:
    document = full({f"{CAL}.sampleCount": 0, f"{REC}.bogus": 1, "spec.evaluation.windowCount": 0})
    spec = document["spec"]
    document["spec"] = {key: spec[key] for key in sorted(spec, reverse=True)}

    with pytest.raises(InvalidInput, match=r"^spec\.recipe\.bogus: "):
        parse_job(document)
    del document["spec"]["recipe"]["bogus"]
    with pytest.raises(InvalidInput, match=r"^spec\.evaluation\.windowCount: "):
        parse_job(document)


@pytest.mark.parametrize("document", [None, {}, [], "text", 3], ids=repr)
def test_what_is_no_mapping_is_refused(document: object) -> None:
    with pytest.raises(InvalidInput, match="manifest: must be a mapping"):
        parse_job(document)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)


def _paths(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    inner = [found for key, item in entries for found in _paths(item, (*path, key))]
    return [*([path] if path else []), *inner]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_junk_anywhere_is_accepted_or_refused_in_one_line(data: st.DataObject) -> None:
    document = yaml.safe_load(FULL_JOB)
    *parents, last = data.draw(st.sampled_from(_paths(document)))
    target: Any = document
    for step in parents:
        target = target[step]
    target[last] = data.draw(JUNK)

    try:
        parse_job(document)
    except InvalidInput as error:
        message = str(error)
        assert message.splitlines() == [message]
        assert message.startswith(str([*parents, last][0]))
