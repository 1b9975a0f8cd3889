"""The API server: the only module that talks to it, and the only one that imports its client.

Called by the controller and at start. Requests run in threads, so that the loop of watches and
queue never waits; none is repeated here, because the work queue backs off and looks again. Every
answer that is not a success is one of the errors of `answers`.
"""

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import urllib3
from kubernetes import client, config

from quantfleet_api.names import API_VERSION, CRD_NAME, GROUP, JOB_UID_LABEL, KIND, SELECTOR
from quantfleet_api.status import OPERATOR_FIELD_MANAGER
from quantfleet_operator.answers import AlreadyExists, ApiError, Stale, Unavailable, error_of
from quantfleet_operator.decision import Delete, Event, Manifest, SuspendJob
from quantfleet_operator.kinds import path_of
from quantfleet_operator.metrics import API_CALLS, API_SECONDS
from quantfleet_operator.observed import SUSPENDED_ANNOTATION, JobView, Raw

logger = logging.getLogger(__name__)

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
PAGE = 500
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
REPORTER = f"{GROUP}/operator"
MOST_NOTE = 1024
"""Longest text of an event that the API server takes."""
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Page:
    """Objects of a kind, and the version of the list that they are from."""

    items: tuple[Raw, ...]
    resource_version: str


class Cluster:
    """A connection to the API server; safe to use from several tasks."""

    def __init__(self, api: client.ApiClient, *, threads: int, instance: str) -> None:
        self._api = api
        self._instance = instance[:128]
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="api")

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Raw:
        """Creates an object, or only asks whether it could be; returns it as the server has it."""
        query = [("fieldManager", OPERATOR_FIELD_MANAGER)]
        if dry_run:
            query.append(("dryRun", "All"))
        return await self._call("create", _collection(manifest), manifest, query)

    async def apply(self, manifest: Manifest) -> Raw:
        """Server-side apply of a child that is ours."""
        query = [("fieldManager", OPERATOR_FIELD_MANAGER), ("force", "true")]
        return await self._call("patch", _object(manifest), manifest, query, APPLY)

    async def apply_status(self, view: JobView, status: dict[str, Any]) -> Raw:
        """Applies the operator's whole share of a status, to the version that was looked at.

        The UID is no precondition of an apply, so the resource version is (rule C14). Raises Stale
        where the job changed since, or is gone.
        """
        meta = {
            "name": view.name,
            "namespace": view.namespace,
            "resourceVersion": view.resource_version,
        }
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}
        path = path_of(API_VERSION, KIND, view.namespace, view.name, "status")
        query = [("fieldManager", OPERATOR_FIELD_MANAGER), ("force", "true")]
        return await self._call("patch", path, body, query, APPLY)

    async def fill_secret(self, secret: Raw, data: dict[str, str]) -> Raw:
        """Writes entries (base64) of the version of a Secret that was looked at, else Stale."""
        meta = secret["metadata"]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "data": data}
        path = path_of("v1", "Secret", meta["namespace"], meta["name"])
        query = [("fieldManager", OPERATOR_FIELD_MANAGER)]
        return await self._call("patch", path, body, query, MERGE)

    async def suspend(self, namespace: str, action: SuspendJob) -> Raw:
        """Suspends or resumes this very Job; another of its name is Stale."""
        mark = {SUSPENDED_ANNOTATION: "true" if action.suspend else None}
        meta = {"uid": action.uid, "annotations": mark}
        body = {"metadata": meta, "spec": {"suspend": action.suspend}}
        path = path_of("batch/v1", "Job", namespace, action.name)
        query = [("fieldManager", OPERATOR_FIELD_MANAGER)]
        return await self._call("patch", path, body, query, MERGE)

    async def delete(self, namespace: str, action: Delete, owner_uid: str) -> None:
        """Deletes a child of the owner, what belongs to it in the background; gone is fine."""
        uid = action.uid
        if not uid:
            found = await self.find(action.api_version, action.kind, namespace, action.name)
            if found is None or owner_of(found) != owner_uid:
                return
            uid = found["metadata"]["uid"]
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        path = path_of(action.api_version, action.kind, namespace, action.name)
        try:
            await self._call("delete", path, options, [])
        except Stale:
            logger.debug("already gone kind=%s name=%s", action.kind, action.name)

    async def find(self, api_version: str, kind: str, namespace: str, name: str) -> Raw | None:
        """An object as it is now, or None."""
        try:
            return await self._call("get", path_of(api_version, kind, namespace, name), None, [])
        except Stale:
            return None

    async def list_all(
        self, api_version: str, kind: str, namespace: str | None, *, job_uid: str = ""
    ) -> Page:
        """All our objects of a kind in a namespace (None: anywhere), page by page.

        With a `job_uid` only the children of that job.
        """
        items: list[Raw] = []
        query = [("limit", str(PAGE))]
        if kind != KIND:
            own = f",{JOB_UID_LABEL}={job_uid}" if job_uid else ""
            query.append(("labelSelector", SELECTOR + own))
        path, more = path_of(api_version, kind, namespace), ""
        while True:
            last = [("continue", more)] if more else []
            answer = await self._call("list", path, None, query + last)
            items += answer["items"]
            more = answer["metadata"].get("continue", "")
            if not more:
                return Page(tuple(items), answer["metadata"]["resourceVersion"])

    async def warnings(self, namespace: str, uid: str) -> tuple[Raw, ...]:
        """Warning events about an object, the latest first."""
        selector = f"involvedObject.uid={uid},type=Warning"
        query = [("fieldSelector", selector), ("limit", "100")]
        answer = await self._call("list", path_of("v1", "Event", namespace), None, query)
        return tuple(sorted(answer["items"], key=_event_time, reverse=True))

    async def definition(self) -> Raw | None:
        """The CustomResourceDefinition of our kind, or None."""
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
        try:
            return await self._call("get", path, None, [])
        except Stale:
            return None

    async def tell(self, view: JobView, event: Event) -> None:
        """Adds an event to a job's story; one that cannot be added is logged and left out."""
        meta = {"namespace": view.namespace, "name": f"{view.name}.{uuid4().hex[:16]}"}
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": meta,
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.reason,
            "type": event.type,
            "note": event.message[:MOST_NOTE],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": view.namespace,
                "name": view.name,
                "uid": view.uid,
            },
        }
        try:
            await self._call("create", _collection(body), body, [])
        except ApiError as error:
            logger.warning("event left out job=%s reason=%s: %s", view.name, event.reason, error)

    async def _call(
        self,
        verb: str,
        path: str,
        body: dict[str, Any] | None,
        query: list[tuple[str, str]],
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, self._request, verb, path, body, query, content_type
        )

    def _request(
        self,
        verb: str,
        path: str,
        body: dict[str, Any] | None,
        query: list[tuple[str, str]],
        content_type: str,
    ) -> dict[str, Any]:
        """One request, once."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            with API_SECONDS.labels(verb=verb).time():
                prepared = self._api.param_serialize(
                    _METHODS[verb],
                    path,
                    query_params=query,
                    header_params=headers,
                    body=body,
                    auth_settings=["BearerToken"],
                )
                timeout = (CONNECT_SECONDS, READ_SECONDS)
                answer = self._api.call_api(*prepared, _request_timeout=timeout)
                data: bytes = answer.read()
        except (urllib3.exceptions.HTTPError, client.ApiException, OSError) as error:
            API_CALLS.labels(verb=verb, outcome="unreached").inc()
            raise Unavailable(f"the API server was not reached: {error}") from error
        API_CALLS.labels(verb=verb, outcome=f"{answer.status // 100}xx").inc()
        if answer.status >= 300:
            raise error_of(verb, answer.status, data, answer.headers)
        parsed: dict[str, Any] = json.loads(data)
        return parsed


def connect(*, threads: int, instance: str) -> Cluster:
    """The cluster that this process runs in; outside of one, that which KUBECONFIG names."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)
    configuration.retries = False
    configuration.connection_pool_maxsize = threads
    return Cluster(client.ApiClient(configuration), threads=threads, instance=instance)


def owner_of(raw: Raw) -> str:
    """UID of the object that controls another, or ""."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


async def ensure(cluster: Cluster, manifest: Manifest, owner_uid: str, annotation: str) -> None:
    """Makes a child, or brings the one that is there to what it should be.

    One that is not ours is left alone: AlreadyExists.
    """
    try:
        await cluster.create(manifest)
        return
    except AlreadyExists:
        meta = manifest["metadata"]
        kind, namespace = manifest["kind"], meta["namespace"]
        found = await cluster.find(manifest["apiVersion"], kind, namespace, meta["name"])
        if found is None:
            raise Stale(f"{kind} {meta['name']} went away") from None
        if owner_of(found) != owner_uid:
            raise
    annotations = found["metadata"].get("annotations") or {}
    if annotations.get(annotation) != meta["annotations"][annotation]:
        await cluster.apply(manifest)


def _collection(manifest: Manifest) -> str:
    return path_of(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])


def _object(manifest: Manifest) -> str:
    meta = manifest["metadata"]
    return path_of(manifest["apiVersion"], manifest["kind"], meta["namespace"], meta["name"])


def _event_time(event: Raw) -> str:
    found = event.get("eventTime") or event.get("lastTimestamp")
    return str(found or event["metadata"].get("creationTimestamp") or "")
