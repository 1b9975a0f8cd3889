"""The API server: the only module that talks to it, and the only one that imports its client.

Every answer that is not a success is one of the errors of `quantfleet_operator.answers`. Nothing is
repeated here: callers know whether and when to ask again.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from quantfleet_api.names import API_VERSION, KIND
from quantfleet_api.status import SERVER_FIELD_MANAGER
from quantfleet_operator.answers import Stale, Unavailable, error_of
from quantfleet_operator.kinds import path_of
from quantfleet_server.jobs import Job, Raw
from quantfleet_server.metrics import API_CALLS

PAGE = 500
CONNECTIONS = 64
WATCH_SECONDS = 240
SILENT_SECONDS = 90.0
"""Bookmarks come every minute: a watch that brings nothing for longer is dead."""
REQUEST_SECONDS = 30.0
APPLY = "application/apply-patch+yaml"
_QUERY = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who the API server says that a token belongs to."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Cluster:
    """A connection to the API server; lives in one event loop."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    async def close(self) -> None:
        """Closes all connections."""
        await self._api.close()

    async def list_jobs(self, namespace: str | None) -> tuple[list[Raw], str]:
        """All jobs of a namespace (None: of all), and the version of that list."""
        items: list[Raw] = []
        path, more = path_of(API_VERSION, KIND, namespace), ""
        while True:
            last = [("continue", more)] if more else []
            answer = await self._call("list", "GET", path, query=[("limit", str(PAGE)), *last])
            items += answer["items"]
            more = answer["metadata"].get("continue", "")
            if not more:
                return items, answer["metadata"]["resourceVersion"]

    async def find_job(self, namespace: str, name: str) -> Raw | None:
        """A job as it is now, or None."""
        try:
            return await self._call("get", "GET", path_of(API_VERSION, KIND, namespace, name))
        except Stale:
            return None

    async def watch_jobs(self, namespace: str | None, version: str) -> AsyncIterator[Raw]:
        """Changes after a version, until the API server ends the watch; raises what went wrong."""
        query = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(WATCH_SECONDS)),
        ]
        path = path_of(API_VERSION, KIND, namespace)
        timeout = aiohttp.ClientTimeout(sock_connect=5, sock_read=SILENT_SECONDS)
        async with self._answer("watch", "GET", path, None, query, timeout) as answer:
            async for line in _lines(answer):
                yield json.loads(line)

    async def apply_progress(self, job: Job, progress: Mapping[str, Any]) -> Raw:
        """Writes the server's share of a status, to the version that is known (rule C14).

        Raises Stale where the job changed since, or is gone; Refused (422) where it has ended.
        """
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "namespace": job.namespace,
                "name": job.name,
                "resourceVersion": str(job.version),
            },
            "status": {"progress": dict(progress)},
        }
        path = path_of(API_VERSION, KIND, job.namespace, job.name, "status")
        query = [("fieldManager", SERVER_FIELD_MANAGER), ("force", "true")]
        return await self._call("apply", "PATCH", path, body, query, content=APPLY)

    async def review(self, token: str, audience: str) -> User | None:
        """Whose token it is; None where it is nobody's, or not for this audience.

        An authenticator that knows no audiences would say yes to any token, so the answer must name
        the audience.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        status = (await self._call("review", "POST", path, body)).get("status") or {}
        if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
            return None
        user = status.get("user") or {}
        extra = sorted((user.get("extra") or {}).items())
        return User(
            name=user.get("username") or "",
            uid=user.get("uid") or "",
            groups=tuple(user.get("groups") or ()),
            extra=tuple((key, tuple(values)) for key, values in extra),
        )

    async def may(self, user: User, verb: str, namespace: str | None, name: str = "") -> bool:
        """Whether a user may get or list jobs, in a namespace or (None) in all of them."""
        group, _, version = API_VERSION.partition("/")
        asked = {"group": group, "version": version, "resource": "quantizationjobs", "verb": verb}
        asked |= {"namespace": namespace or "", "name": name}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "uid": user.uid,
                "groups": list(user.groups),
                "extra": {key: list(values) for key, values in user.extra},
                "resourceAttributes": asked,
            },
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        status = (await self._call("access", "POST", path, body)).get("status") or {}
        return status.get("allowed") is True

    async def events(self, namespace: str, uid: str) -> list[Raw]:
        """The events about an object, as many as the API server gives at once."""
        query = [("fieldSelector", f"involvedObject.uid={uid}"), ("limit", str(PAGE))]
        answer = await self._call("events", "GET", path_of("v1", "Event", namespace), None, query)
        return list(answer["items"])

    async def _call(
        self,
        what: str,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: _QUERY | None = None,
        *,
        content: str = "application/json",
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=5)
        async with self._answer(what, method, path, body, query or [], timeout, content) as answer:
            parsed: dict[str, Any] = json.loads(await answer.read())
            return parsed

    @asynccontextmanager
    async def _answer(
        self,
        what: str,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        query: _QUERY,
        timeout: aiohttp.ClientTimeout,
        content: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request, once; its answer is not read yet."""
        prepared = await self._api.param_serialize(
            method,
            path,
            query_params=query,
            header_params={"Accept": "application/json", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            sent = await self._api.call_api(*prepared, _request_timeout=timeout)
            answer: aiohttp.ClientResponse = sent.response
            async with answer:
                API_CALLS.labels(kind=what, outcome=f"{answer.status // 100}xx").inc()
                if answer.status >= 300:
                    raise error_of(method, answer.status, await answer.read(), answer.headers)
                yield answer
        except (TimeoutError, aiohttp.ClientError, client.ApiException, OSError) as error:
            API_CALLS.labels(kind=what, outcome="unreached").inc()
            raise Unavailable(
                f"the API server was not reached: {str(error) or type(error).__name__}"
            ) from error


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of an answer, however long they are."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


async def connect() -> Cluster:
    """The cluster that this process runs in; outside of one, that which KUBECONFIG names."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    configuration.retries = None
    configuration.connection_pool_maxsize = CONNECTIONS
    return Cluster(client.ApiClient(configuration))
