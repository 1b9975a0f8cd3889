"""What the OpenAPI document says beyond the models: examples, errors, how to authenticate."""

from typing import Any

from pydantic import BaseModel

from quantfleet_api.report import LayerReport, ProgressReport, RankReport, ReportAnswer
from quantfleet_api.status import JobStatus, Phase, PublishedOutput, ReportedProgress
from quantfleet_server.errors import REASONS, Status
from quantfleet_server.views import (
    History,
    JobList,
    JobView,
    KubernetesEvent,
    Layers,
    LayerView,
    Meta,
    OutputView,
    ProgressView,
    Ranks,
    RankView,
)

_TIME = "2026-11-30T12:00:00.000000Z"
_PROGRESS = ReportedProgress(
    attempt=1,
    stage="Calibrating",
    layers_completed=12,
    total_layers=32,
    percent=38,
    samples_processed=40,
    total_samples=64,
    estimated_remaining_seconds=812,
    last_update_time=_TIME,
)
_RANK = RankReport(
    rank=0,
    world_size=2,
    stage="Calibrating",
    layer=12,
    num_layers=32,
    micro_batch=20,
    num_micro_batches=32,
    pass_index=1,
    num_passes=2,
    samples=20,
    num_samples=32,
    tokens_per_second=5120.5,
    eta_seconds=812.0,
)
_LAYER = LayerReport(layer=11, seconds=31.5, relative_error=0.0123)
_STATUS = JobStatus(phase=Phase.CALIBRATING, attempt=1, progress=_PROGRESS, start_time=_TIME)
_JOB = JobView(
    metadata=Meta(
        namespace="team",
        name="smollm2-w8a8",
        uid="6d2c8a1e-3f5b-4c7d-9e8f-0a1b2c3d4e5f",
        resource_version="4711",
        creation_timestamp="2026-11-30T11:58:00Z",
    ),
    status=_STATUS,
)
_OUTPUT = PublishedOutput(
    path="out/smollm2-w8a8", digest="sha256:" + "5" * 64, size_bytes=135, file_count=7, warnings=0
)
_EVENT = KubernetesEvent(
    type="Normal", reason="WorkersReady", message="all 2 workers are ready", time=_TIME, count=1
)
REPORT = ProgressReport(attempt=1, pod=0, sequence=7, ranks=(_RANK,), layers=(_LAYER,))
EXAMPLES: dict[type[BaseModel], BaseModel] = {
    JobView: _JOB,
    JobList: JobList(items=(_JOB,)),
    ProgressView: ProgressView(attempt=1, progress=_PROGRESS),
    Ranks: Ranks(attempt=1, ranks=(RankView(pod=0, last_update_time=_TIME, report=_RANK),)),
    Layers: Layers(attempt=1, layers=(LayerView(attempt=1, report=_LAYER),)),
    OutputView: OutputView(output=_OUTPUT),
    History: History(items=(_EVENT,)),
    ReportAnswer: ReportAnswer(known_layers=12),
    ProgressReport: REPORT,
}
Responses = dict[int | str, dict[str, Any]]


def written(model: BaseModel) -> Any:
    """A model as it travels."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def responses(model: type[BaseModel] | None, *codes: int) -> Responses:
    """What a route answers: an example of its model, and a Status for each of these codes."""
    told: Responses = {}
    if model is not None:
        content = {"application/json": {"example": written(EXAMPLES[model])}}
        told[200] = {"description": "Success", "content": content}
    for code in codes:
        status = Status(message="...", reason=REASONS[code], code=code)
        content = {"application/json": {"example": written(status)}}
        told[code] = {"model": Status, "description": REASONS[code], "content": content}
    return told


READ_CODES = (401, 403, 404, 422, 429, 503)
REPORT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/ProgressReport"},
                "example": written(REPORT),
            }
        },
    }
}
SECURITY: dict[str, Any] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "Readers: `kubectl create token ACCOUNT --audience server.quantfleet.io`."
        " Workers: the projected token of their pod.",
    }
}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """The document that FastAPI drew up, with what it cannot know."""
    components = document["components"]
    components["securitySchemes"] = SECURITY
    schema = ProgressReport.model_json_schema(
        by_alias=True, ref_template="#/components/schemas/{model}"
    )
    components["schemas"] |= schema.pop("$defs", {})
    components["schemas"]["ProgressReport"] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if path.startswith("/apis"):
                operation["security"] = [{"bearer": []}]
    return document
