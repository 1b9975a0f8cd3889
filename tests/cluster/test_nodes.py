"""The cluster itself: what a test of the product on real nodes may take for granted."""

import json

import pytest

import small_pods
from child_process import wait_for
from cluster_access import Cluster, Json
from two_nodes.site import Site

pytestmark = pytest.mark.cluster
POLICY_SECONDS = 60.0  # seen: below 5


def test_both_nodes_are_ready_and_offer_what_workers_ask_for(site: Site, cluster: Cluster) -> None:
    nodes = cluster.list("nodes")
    assert {node["metadata"]["name"] for node in nodes} == {node.name for node in site.nodes}
    for node in nodes:
        ready = [c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"]
        assert ready == ["True"]
        assert int(node["status"]["allocatable"]["memory"].removesuffix("Ki")) > 6 * 2**20


def test_pods_of_a_job_on_two_nodes_find_each_other_by_name(
    cluster: Cluster, namespace: str, busybox: str
) -> None:
    """Pod 1 says a word to pod 0 over TCP, and pod 0 says which node it came to."""
    script = """
    if [ $JOB_COMPLETION_INDEX = 0 ]; then
        busybox nc -l -p 9000
    else
        until echo from-1 | busybox nc -w 2 talk-0.peers 9000; do busybox sleep 0.1; done
    fi
    """
    pod = small_pods.template(busybox, script)
    pod["spec"] |= {"subdomain": "peers"} | _one_a_node("test")
    ports = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "test"}}
    cluster.create("services", {"metadata": {"name": "peers"}, "spec": ports}, namespace=namespace)
    job = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": pod}
    cluster.create("jobs", {"metadata": {"name": "talk"}, "spec": job}, namespace=namespace)

    def completed() -> bool:
        status = cluster.get("jobs", "talk", namespace=namespace)["status"]
        assert not status.get("failed"), _told(cluster, namespace)
        return bool(status.get("succeeded") == 2)

    wait_for("both pods are done", completed)
    pods = cluster.list("pods", namespace=namespace)
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert "from-1" in _told(cluster, namespace)


def test_a_network_policy_cuts_off_foreign_pods_on_either_node(
    site: Site, cluster: Cluster, namespace: str, busybox: str
) -> None:
    here, there = (node.name for node in site.nodes)
    pods = {"own-here": here, "own-there": there, "foreign-here": here, "foreign-there": there}
    for name, node in {"server": here, **pods}.items():
        app = "foreign" if name.startswith("foreign") else "own"
        body = small_pods.template(busybox, small_pods.FOREVER, node=node, app=app)
        small_pods.start(cluster, namespace, name, body)
    for name in pods:
        wait_for(name, lambda name=name: small_pods.address(cluster, namespace, name))
    server = wait_for("server", lambda: small_pods.address(cluster, namespace, "server"))

    def reaching() -> set[str]:
        return {name for name in pods if small_pods.reaches(cluster, namespace, name, server, 8080)}

    wait_for("everybody reaches it", lambda: reaching() == set(pods), seconds=POLICY_SECONDS)
    own = {"podSelector": {"matchLabels": {"app": "own"}}}
    policy = {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
    body = {"metadata": {"name": "own-only"}, "spec": policy}
    cluster.create("networkpolicies", body, namespace=namespace)
    expected = {"own-here", "own-there"}
    wait_for("only own pods do", lambda: reaching() == expected, seconds=POLICY_SECONDS)


def test_a_pod_reaches_the_api_server_by_its_service(
    cluster: Cluster, namespace: str, busybox: str
) -> None:
    body = small_pods.template(busybox, small_pods.FOREVER)
    small_pods.start(cluster, namespace, "client", body)
    wait_for("client", lambda: small_pods.address(cluster, namespace, "client"))
    assert small_pods.reaches(cluster, namespace, "client", "kubernetes.default.svc", 443)
    assert not small_pods.reaches(cluster, namespace, "client", "kubernetes.default.svc", 444)


def _one_a_node(app: str) -> Json:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {"podAntiAffinity": required}}


def _told(cluster: Cluster, namespace: str) -> str:
    logs = cluster.kubectl("logs", "-n", namespace, "-l", "app=test", "--prefix", check=False)
    return logs + json.dumps([pod["status"] for pod in cluster.list("pods", namespace=namespace)])
