"""The server's certificate: kept by the operator, trusted by workers, exchanged without restart."""

import base64
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from child_process import wait_for
from cluster_access import Cluster, Json
from control_plane import ControlPlane
from quantfleet_operator.certificates import LEAF_LIFE, Chain, chain_of, renewed
from quantization_jobs import Quantization
from reporting_jobs import ServerPlace, rank
from server_process import NAMES, Client
from workplaces import Workplace, open_workplace

pytestmark = pytest.mark.controlplane
SECRET = "qf-server-tls"


@pytest.fixture
def keeping(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Workplace]:
    """An operator that keeps the certificate of a server in a Secret of the test's namespace."""
    plane.cluster.create("secrets", {"metadata": {"name": SECRET}}, namespace=namespace)
    settings = {
        "QUANTFLEET_PROGRESS_URL": "https://localhost:8443",
        "QUANTFLEET_SERVER_SECRET": SECRET,
        "QUANTFLEET_SERVER_NAMESPACE": namespace,
        "QUANTFLEET_CERTIFICATE_SECONDS": "1",
    }
    with open_workplace(plane, namespace, tmp_path, settings=settings) as opened:
        yield opened


def secret_chain(cluster: Cluster, namespace: str) -> Chain:
    data = cluster.get("secrets", SECRET, namespace=namespace).get("data") or {}
    return chain_of({key: base64.b64decode(value) for key, value in data.items()})


def trusted_by(job: Quantization) -> bytes:
    """What the job's ConfigMap says is to be trusted."""
    found = job.cluster.get("configmaps", job.child_name(), namespace=job.namespace)
    return str(found["data"].get("ca.crt", "")).encode()


def test_c19_the_operator_fills_the_secret_and_the_workers_trust_it(keeping: Workplace) -> None:
    chain = wait_for("certificate", lambda: c if (c := secret_chain(*where(keeping))).key else None)
    job, (pod, _) = keeping.submit_running("trusting")
    wait_for("authority known", lambda: trusted_by(job) == chain.authority)
    (worker,) = pod["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in worker["env"]}
    path = f"/apis/v1alpha1/namespaces/{job.namespace}/quantizationjobs/{job.name}/progress"
    assert variables["QUANTFLEET_PROGRESS_URL"] == f"https://localhost:8443{path}"
    assert variables["QUANTFLEET_PROGRESS_CA_FILE"] == "/etc/quantfleet/ca.crt"
    (token,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "token"]
    (source,) = token["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == f"quantfleet/{job.uid}/1"


def where(workplace: Workplace) -> tuple[Cluster, str]:
    return workplace.cluster, workplace.namespace


def write_secret(cluster: Cluster, namespace: str, chain: Chain) -> None:
    data: Json = {key: base64.b64encode(value).decode() for key, value in chain.data().items()}
    cluster.patch("secrets", SECRET, {"data": data}, namespace=namespace)


def test_c19_a_new_authority_reaches_jobs_that_run(keeping: Workplace) -> None:
    """The Secret is set back by seven years: authority and leaf are due."""
    job, _ = keeping.submit_running("running")
    wait_for("authority known", lambda: trusted_by(job))
    names = ("localhost", "localhost")
    old = renewed(Chain(), names, datetime.now(UTC) - timedelta(days=7 * 365))
    write_secret(*where(keeping), old)

    def both() -> bool:
        chain = secret_chain(*where(keeping))
        known = (
            chain.authority.count(b"BEGIN CERTIFICATE") == 2 and old.authority in chain.authority
        )
        return known and trusted_by(job) == chain.authority

    wait_for("both authorities trusted", both)
    assert secret_chain(*where(keeping)).certificate != old.certificate


def test_c19_a_leaf_past_two_thirds_is_renewed_and_the_authority_stays(keeping: Workplace) -> None:
    chain = wait_for("certificate", lambda: c if (c := secret_chain(*where(keeping))).key else None)
    then = datetime.now(UTC) - LEAF_LIFE * 0.7
    aged = renewed(Chain(), ("localhost", "localhost"), then)
    write_secret(*where(keeping), aged)
    wait_for("leaf renewed", lambda: secret_chain(*where(keeping)).certificate != aged.certificate)
    assert secret_chain(*where(keeping)).authority == aged.authority
    assert aged.authority != chain.authority


def test_c19_the_server_shows_a_new_certificate_without_a_restart(
    own_server_place: ServerPlace,
) -> None:
    place = own_server_place
    job, server = place.submit(), place.server
    before = ssl.get_server_certificate(("localhost", server.port))
    worker = job.worker()
    job.post(worker, rank(layer=1, numLayers=9))
    stream = place.reader().follow(f"{job.path}/events")
    stream.next("snapshot")

    old_key = replace(server.chain, key=b"", certificate=b"")
    server.chain = renewed(old_key, NAMES, datetime.now(UTC))
    server.write_chain()

    def shown() -> str | None:
        now = ssl.get_server_certificate(("localhost", server.port))
        return now if now != before else None

    assert wait_for("new certificate", shown).encode() == server.chain.certificate
    # whoever trusts the authority goes on, and open streams never noticed
    fresh = Client(url=server.url, authority=server.authority, token=worker.token)
    assert job.post(fresh, rank(layer=2, numLayers=9)).status == 200
    assert stream.next("progress").data["layersCompleted"] == 2
    stream.close()


def test_c19_a_certificate_that_is_broken_leaves_the_old_one(own_server_place: ServerPlace) -> None:
    server = own_server_place.server
    good = server.chain
    server.chain = replace(good, certificate=b"garbage")
    server.write_chain()
    wait_for("complaint", lambda: "certificate not taken up" in server.log())
    fresh = Client(url=server.url, authority=server.authority)
    assert fresh.get("/readyz").status == 200
