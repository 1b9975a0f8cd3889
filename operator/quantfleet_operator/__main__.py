"""The operator's process: `python -m quantfleet_operator`.

Exit codes: 0 after SIGTERM or SIGINT, 1 if the CustomResourceDefinition is absent, 2 if a setting
is wrong.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Coroutine
from datetime import UTC, datetime
from typing import Any

import kopf
from prometheus_client import start_http_server

from quantfleet_api.crd import SCHEMA_HASH_ANNOTATION, schema_hash
from quantfleet_api.names import CRD_NAME
from quantfleet_operator.answers import ApiError
from quantfleet_operator.cluster import Cluster, connect
from quantfleet_operator.controller import Controller
from quantfleet_operator.diagnosis import Diagnoses
from quantfleet_operator.handlers import configure, registry_of
from quantfleet_operator.health import Health, serve_health
from quantfleet_operator.metrics import report
from quantfleet_operator.resync import Resync
from quantfleet_operator.server_secret import SecretKeeper
from quantfleet_operator.settings import Settings, settings_from
from quantfleet_operator.store import Key, Store
from quantfleet_operator.work_queue import WorkQueue

logger = logging.getLogger("quantfleet_operator")

AGAIN_SECONDS = 5.0
"""How often a CRD that is another version's, or an API server that is away, is asked again."""


class DefinitionAbsent(Exception):
    """The cluster does not know QuantizationJobs at all."""


def main() -> int:
    """Runs until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        settings = settings_from()
    except (ValueError, OSError) as error:
        logger.error("%s", error)
        return 2
    try:
        asyncio.run(operate(settings))
    except DefinitionAbsent as error:
        logger.error("%s", error)
        return 1
    return 0


async def operate(settings: Settings) -> None:
    """Waits for a CRD that fits, then watches, looks and resyncs until kopf is told to stop."""
    loop = asyncio.get_running_loop()
    store: Store = Store()
    queue: WorkQueue[Key] = WorkQueue(seed=os.getpid())
    health = Health(
        clock=loop.time,
        resync_seconds=settings.resync_seconds,
        oldest_wait=queue.oldest_wait,
        longest_look=queue.longest_look,
    )
    cluster = connect(threads=2 * settings.workers, instance=socket.gethostname())
    report(store.phases, lambda: float(len(queue)))
    if settings.metrics_port:
        start_http_server(settings.metrics_port)
    runner = await serve_health(health, settings.liveness_port) if settings.liveness_port else None
    try:
        await definition_fits(cluster, health)
        await run(settings, cluster, store, queue, health)
    finally:
        if runner is not None:
            await runner.cleanup()


async def definition_fits(cluster: Cluster, health: Health) -> None:
    """Returns once the live CRD has this operator's schema; raises DefinitionAbsent without one.

    With another schema the API server would refuse a whole status for one unknown field, or lose a
    field without a word, so nothing is done until it fits (rule C14).
    """
    while True:
        try:
            raw = await cluster.definition()
        except ApiError as error:
            health.definition = f"the CRD cannot be read: {error}"
        else:
            if raw is None:
                raise DefinitionAbsent(f"CustomResourceDefinition {CRD_NAME} is not installed")
            annotations = raw["metadata"].get("annotations") or {}
            if annotations.get(SCHEMA_HASH_ANNOTATION) == schema_hash():
                health.definition = ""
                return
            health.definition = f"{CRD_NAME} has the schema of another version of the operator"
        logger.error("not ready: %s", health.definition)
        await asyncio.sleep(AGAIN_SECONDS)


async def run(
    settings: Settings, cluster: Cluster, store: Store, queue: WorkQueue[Key], health: Health
) -> None:
    """kopf, the workers and the resync, until one of them ends."""
    controller = Controller(
        cluster=cluster,
        store=store,
        queue=queue,
        settings=settings,
        clock=lambda: datetime.now(UTC),
        refusals={},
        diagnoses=Diagnoses(cluster),
    )
    resync = Resync(
        cluster=cluster,
        store=store,
        queue=queue,
        health=health,
        settings=settings,
        clock=asyncio.get_running_loop().time,
    )
    await resync.first()
    # Tasks that start before kopf does are not taken for its own, for which it waits at the end.
    tasks = [asyncio.create_task(part) for part in background(controller, resync)]
    own = kopf.OperatorSettings()
    configure(own)
    watches = kopf.operator(
        registry=registry_of(store, queue, health, resync.soon),
        settings=own,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        standalone=True,
    )
    await first_to_end(*tasks, watches)


def background(controller: Controller, resync: Resync) -> list[Coroutine[Any, Any, None]]:
    """What runs beside the watches for ever."""
    settings = controller.settings
    parts = [controller.work() for _ in range(settings.workers)]
    parts.append(resync.run())
    if settings.server_secret:
        keeper = SecretKeeper(
            cluster=controller.cluster,
            settings=settings,
            clock=controller.clock,
            trust=controller.trust,
        )
        parts.append(keeper.run())
    return parts


async def first_to_end(*parts: Awaitable[None]) -> None:
    """Runs all until one ends or fails, then stops the others."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


if __name__ == "__main__":
    sys.exit(main())
