"""The OpenAPI document is true: what it allows and what it does not is answered as it says."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from reporting_jobs import Reporting, ServerPlace, rank
from server_process import Client

pytestmark = pytest.mark.controlplane

CHECKS = (content_type_conformance, response_schema_conformance, status_code_conformance)
ASKED = settings(
    max_examples=8,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
    deadline=None,
    derandomize=True,
)


@pytest.fixture(scope="module")
def document(server_place: ServerPlace) -> dict[str, Any]:
    """The document as the server gives it to anybody."""
    answer = server_place.server.client().get("/openapi.json")
    assert answer.status == 200
    return answer.body


def operations(document: dict[str, Any]) -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(document)
    found = [operation.ok() for operation in schema.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


def test_document_names_every_route_with_an_example_and_its_errors(
    document: dict[str, Any],
) -> None:
    one = "/apis/v1alpha1/namespaces/{namespace}/quantizationjobs/{name}"
    parts = ("", "/events", "/history", "/layers", "/output", "/progress", "/ranks")
    assert {f"{one}{part}" for part in parts} <= set(document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["security"] == [{"bearer": []}], where
            (content,) = operation["responses"]["200"]["content"].values()
            assert content["example"], where
            expected = {"401", "429", "503"} | (
                {"403", "404", "422"} if "{name}" in path else set()
            )
            assert expected <= set(operation["responses"]), where
            for code in set(operation["responses"]) - {"200", "204"}:
                (content,) = operation["responses"][code]["content"].values()
                assert content["example"]["kind"] == "Status", where
    (body,) = document["paths"][f"{one}/progress"]["post"]["requestBody"]["content"].values()
    assert body["example"]["ranks"]
    assert document["components"]["schemas"]["ProgressReport"]["additionalProperties"] is False


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_as_the_document_says(
    server_place: ServerPlace, document: dict[str, Any], mode: GenerationMode
) -> None:
    job = server_place.submit()
    job.post(job.worker(), rank(layer=1, numLayers=4))
    seen: set[int] = set()
    for where, operation in operations(document).items():
        if where.endswith("/events"):  # it does not end; the tests of streams ask for it
            continue
        client = job.worker() if where.startswith("POST") else server_place.reader()
        ask(operation, mode, job, client, seen)
    assert (200 if mode is GenerationMode.POSITIVE else 422) in seen
    errors = server_place.server.metric("quantfleet_server_requests_total", status="500")
    assert errors == 0, server_place.server.log()


def ask(
    operation: Any, mode: GenerationMode, job: Reporting, client: Client, seen: set[int]
) -> None:
    """Requests for the job that there is; the first of them for whatever was made up."""
    made_up = 2

    @ASKED
    @given(case=operation.as_strategy(generation_mode=mode))
    def asked(case: Any) -> None:
        nonlocal made_up
        made_up -= 1
        if made_up < 0 and mode is GenerationMode.POSITIVE:
            values = {"namespace": job.namespace, "name": job.name}
            case.path_parameters = {key: values[key] for key in case.path_parameters or {}}
        answer = case.call(
            base_url=client.url,
            headers=client.headers(),
            verify=str(client.authority),
            timeout=30,
        )
        seen.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        case.validate_response(answer, checks=list(CHECKS))

    asked()
