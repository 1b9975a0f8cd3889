"""Progress of a real job: what its status shows and what the status server answers."""

import json
import time

import pytest

from cluster_access import Cluster, Json
from quantfleet_api.report import server_audience
from quantization_jobs import Quantization
from real_jobs import EIGHT_LAYERS, Ground, example

pytestmark = [pytest.mark.cluster, pytest.mark.demo, pytest.mark.soak]
ASK = """
import http.client, socket, ssl
trusted = ssl.create_default_context(cadata={authority!r})
connection = http.client.HTTPSConnection({host!r}, {port})
plain = socket.create_connection(("127.0.0.1", {port}), timeout=30)
connection.sock = trusted.wrap_socket(plain, server_hostname={host!r})
connection.request("GET", {path!r}, headers={{"Authorization": "Bearer " + {token!r}}})
print(connection.getresponse().read().decode())
"""
"""Asks from within the server's pod, under the name that workers use."""
SERVER = "quantfleet-server"
PORT = 8443


def test_progress_grows_and_both_ways_to_read_it_agree_at_the_end(
    shared_ground: Ground, installed: str, figures: dict[str, object]
) -> None:
    job = shared_ground.submit(example("progress", EIGHT_LAYERS))
    seen = watched(job, seconds=420)
    shared_ground.complete(job)
    done = [progress["layersCompleted"] for progress in seen]
    percents = [progress["percent"] for progress in seen]
    assert len(set(percents)) > 2, seen
    assert done == sorted(done)
    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert any("estimatedRemainingSeconds" in progress for progress in seen)
    assert {progress["totalLayers"] for progress in seen if progress["layersCompleted"]} == {
        seen[-1]["totalLayers"]
    }
    told = asked(shared_ground.cluster, installed, shared_ground.namespace, job.name)
    status = job.status()
    assert told["status"]["progress"] == status["progress"]
    assert told["status"]["output"] == status["output"]
    figures |= {"statuses_seen": len(seen)}


def watched(job: Quantization, *, seconds: float) -> list[Json]:
    """Every progress that the status showed until the job ended."""
    seen: list[Json] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = job.status()
        progress = status.get("progress")
        if progress and (not seen or progress != seen[-1]):
            seen.append(progress)
        if status.get("phase") in ("Succeeded", "Failed"):
            last = job.status().get("progress")
            return seen if last in (None, *seen[-1:]) else [*seen, last]
        time.sleep(0.2)  # a reader's pace; nothing depends on it
    raise TimeoutError(f"{job.name} did not end: {job.status()}")


def asked(cluster: Cluster, system: str, namespace: str, name: str) -> Json:
    """The status server's answer for a job, to somebody who may read jobs of the namespace."""
    cluster.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    account = f"--serviceaccount={namespace}:reader"
    cluster.kubectl(
        "create", "rolebinding", "reader", "--clusterrole=view", account, "-n", namespace
    )
    audience = f"--audience={server_audience()}"
    token = cluster.kubectl("create", "token", "reader", audience, "-n", namespace).strip()
    path = f"/apis/v1alpha1/namespaces/{namespace}/quantizationjobs/{name}"
    script = ASK.format(
        host=f"{SERVER}.{system}.svc",
        port=PORT,
        path=path,
        token=token,
        authority=authority(cluster, namespace),
    )
    server = f"deployment/{SERVER}"
    answer = cluster.kubectl("exec", "-i", server, "-n", system, "--", "python", "-", stdin=script)
    found: Json = json.loads(answer)
    return found


def authority(cluster: Cluster, namespace: str) -> str:
    """The authority that workers of the namespace were told to trust."""
    maps = cluster.list("configmaps", namespace=namespace)
    return next(str(found["data"]["ca.crt"]) for found in maps if "job.json" in found["data"])
