"""What is refused before the API server is asked."""

import base64
import json
from math import nan
from typing import Any

import pytest

from quantfleet_server.tokens import (
    MOST_TOKEN,
    BadToken,
    WorkerAudience,
    bearer_of,
    checked,
    claims_of,
    for_audience,
    worker_audience,
)

UID = "6d2c8a1e-3f5b-4c7d-9e8f-0a1b2c3d4e5f"


def token(claims: Any) -> str:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJh.{part}.c2ln"


@pytest.mark.parametrize("header", ["Bearer a1.b2.c3", "bearer a1.b2.c3", "BEARER  a1.b2.c3 "])
def test_scheme_may_be_written_in_any_case(header: str) -> None:
    assert bearer_of(header) == "a1.b2.c3"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic a1.b2.c3",
        "a1.b2.c3",
        "Bearer admin-token",
        "Bearer a1.b2",
        "Bearer a1.b2.c3.d4",
        "Bearer a1.b2.c3\n",
        "Bearer a1.b2.c3 d4",
        "Bearer a1.b\u00e92.c3",
        f"Bearer a1.{'b' * MOST_TOKEN}.c3",
    ],
)
def test_headers_that_are_no_token(header: str | None) -> None:
    if header == "Bearer a1.b2.c3\n":  # whitespace around it is none of it
        assert bearer_of(header) == "a1.b2.c3"
        return
    with pytest.raises(BadToken):
        bearer_of(header)


@pytest.mark.parametrize(
    "claims",
    [
        None,
        [],
        "text",
        {},
        {"aud": "a"},
        {"exp": 1},
        {"aud": [1], "exp": 1},
        {"aud": None, "exp": 1},
        {"aud": "a", "exp": "soon"},
        {"aud": "a", "exp": None},
    ],
    ids=json.dumps,
)
def test_claims_that_say_too_little(claims: Any) -> None:
    with pytest.raises(BadToken):
        claims_of(token(claims))


@pytest.mark.parametrize("text", ["a1.!!.c3", "a1.eyJ.c3", "a1.W1tb.c3", "aa." + "_" * 40 + ".cc"])
def test_claims_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadToken):
        claims_of(text)


@pytest.mark.parametrize("expires", [99.9, 100, -1, nan])
def test_expired_by_its_own_word(expires: float) -> None:
    with pytest.raises(BadToken, match="expired"):
        checked(token({"aud": "a", "exp": expires}), 100.0)
    assert checked(token({"aud": "a", "exp": 101}), 100.0).audiences == ("a",)


def test_a_workers_audience_names_job_and_attempt() -> None:
    claims = claims_of(token({"aud": ["other", f"quantfleet/{UID}/12"], "exp": 1}))

    found = worker_audience(claims)

    assert found == WorkerAudience(audience=f"quantfleet/{UID}/12", uid=UID, attempt=12)


@pytest.mark.parametrize(
    "audience",
    [
        "https://kubernetes.default.svc",
        "quantfleet/",
        f"quantfleet/{UID}",
        f"quantfleet/{UID}/0",
        f"quantfleet/{UID}/1000",
        f"quantfleet/{UID}/1x",
        f"quantfleet/{UID}/1\n",
        f"quantfleet/../{UID}/1",
        f"xquantfleet/{UID}/1",
    ],
)
def test_other_audiences_are_no_workers(audience: str) -> None:
    with pytest.raises(BadToken):
        worker_audience(claims_of(token({"aud": audience, "exp": 1})))


def test_a_reader_needs_the_servers_audience_and_may_have_others() -> None:
    claims = claims_of(token({"aud": ["a", "server"], "exp": 1}))
    for_audience(claims, "server")
    with pytest.raises(BadToken, match="audience other"):
        for_audience(claims, "other")
