"""The proxy that breaks the way to the API server does to a client what it says (C22)."""

import threading
import time
from collections.abc import Iterator

import pytest
import urllib3

from child_process import wait_for
from cluster_access import Access, Cluster, Refused, path_of
from control_plane import ADMIN_TOKEN, ControlPlane
from fault_proxy import Call, Fault, FaultProxy

pytestmark = pytest.mark.controlplane

BROKEN = (urllib3.exceptions.HTTPError, OSError)


@pytest.fixture
def through(proxy: FaultProxy) -> Access:
    """The admin's way in through the proxy."""
    return Access(server=proxy.url, token=ADMIN_TOKEN, authority=None)


def everything(call: Call) -> bool:
    return True


def put(access: Access, namespace: str, name: str) -> None:
    path = path_of("configmaps", namespace=namespace)
    access.call("POST", path, {"metadata": {"name": name}})


def test_calls_travel_on_and_are_counted(
    proxy: FaultProxy, through: Access, cluster: Cluster, namespace: str
) -> None:
    put(through, namespace, "made-through-it")
    through.call("GET", path_of("configmaps", "made-through-it", namespace=namespace))
    assert cluster.find("configmaps", "made-through-it", namespace=namespace) is not None
    assert [(call.number, call.method) for call in proxy.calls] == [(1, "POST"), (2, "GET")]
    assert [call.number for call in proxy.writes] == [1]


def test_errors_of_the_server_keep_their_status(through: Access, namespace: str) -> None:
    with pytest.raises(Refused, match="not found") as refused:
        through.call("GET", path_of("configmaps", "absent", namespace=namespace))
    assert refused.value.status == 404


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_an_injected_answer_is_not_carried_out(
    proxy: FaultProxy, through: Access, cluster: Cluster, namespace: str, status: int
) -> None:
    proxy.inject(Fault(kind="answer", strikes=everything, status=status, retry_after=3))
    with pytest.raises(Refused, match="injected by a test") as refused:
        put(through, namespace, "refused")
    assert refused.value.status == status
    assert cluster.find("configmaps", "refused", namespace=namespace) is None
    put(through, namespace, "refused")
    assert proxy.pending() == []


def test_retry_after_is_a_header(proxy: FaultProxy) -> None:
    proxy.inject(Fault(kind="answer", strikes=everything, status=429, retry_after=3))
    answer = urllib3.request("GET", proxy.url, retries=False)
    assert answer.headers["Retry-After"] == "3"


@pytest.mark.parametrize(("kind", "carried_out"), [("cut", False), ("cut_after", True)])
def test_a_cut_call_has_no_answer(
    proxy: FaultProxy,
    through: Access,
    cluster: Cluster,
    namespace: str,
    kind: str,
    carried_out: bool,
) -> None:
    proxy.inject(Fault(kind=kind, strikes=lambda call: call.writes))  # type: ignore[arg-type]
    with pytest.raises(BROKEN):
        put(through, namespace, "cut")
    found = cluster.find("configmaps", "cut", namespace=namespace)
    assert (found is not None) == carried_out


def test_the_hook_of_the_second_write_runs_after_it(
    proxy: FaultProxy, through: Access, cluster: Cluster, namespace: str
) -> None:
    struck = threading.Event()
    found: list[bool] = []

    def look() -> None:
        found.append(cluster.find("configmaps", "number-2", namespace=namespace) is not None)
        struck.set()

    proxy.inject(Fault(kind="call", strikes=lambda call: call.number == 2, then=look))
    put(through, namespace, "number-1")
    assert not struck.is_set()
    put(through, namespace, "number-2")
    assert struck.wait(10)
    assert found == [True]


def watched(access: Access, namespace: str) -> Iterator[dict[str, object]]:
    version = access.call("GET", path_of("configmaps", namespace=namespace))["metadata"]
    path = path_of("configmaps", namespace=namespace)
    return iter(access.watch(path, version["resourceVersion"], seconds=30))


def test_a_watch_streams(through: Access, cluster: Cluster, namespace: str) -> None:
    events = watched(through, namespace)
    put(cluster.access, namespace, "seen")
    names = (event["object"]["metadata"]["name"] for event in events)  # type: ignore[index]
    assert "seen" in names


def test_a_watch_expires_with_410(proxy: FaultProxy, through: Access, namespace: str) -> None:
    proxy.inject(Fault(kind="expire", strikes=lambda call: call.watch))
    event = next(watched(through, namespace))
    assert event["type"] == "ERROR"
    assert event["object"]["code"] == 410  # type: ignore[index]


def test_a_silent_watch_says_nothing_until_it_may(
    proxy: FaultProxy, through: Access, cluster: Cluster, namespace: str
) -> None:
    events = watched(through, namespace)
    heard = threading.Event()
    first = threading.Thread(target=lambda: (next(events), heard.set()))
    proxy.fall_silent()
    first.start()
    put(cluster.access, namespace, "unheard")
    assert not heard.wait(0.5)
    proxy.speak()
    assert heard.wait(10)
    first.join()


def test_while_it_is_down_nothing_gets_through_and_watches_end(
    proxy: FaultProxy, through: Access, cluster: Cluster, namespace: str
) -> None:
    events = watched(through, namespace)
    proxy.go_down()
    with pytest.raises(BROKEN):
        list(events)
    with pytest.raises(BROKEN):
        put(through, namespace, "while-down")
    assert cluster.find("configmaps", "while-down", namespace=namespace) is None
    proxy.come_up()
    put(through, namespace, "while-up")


def test_a_stalled_call_is_accepted_and_never_answered(
    proxy: FaultProxy, through: Access, namespace: str
) -> None:
    proxy.inject(Fault(kind="stall", strikes=everything))
    started = time.monotonic()
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        urllib3.request("GET", proxy.url, retries=False, timeout=0.5)
    assert time.monotonic() - started >= 0.5
    put(through, namespace, "after-the-stall")


def test_the_api_server_itself_can_go_and_come(
    plane: ControlPlane, proxy: FaultProxy, through: Access, namespace: str
) -> None:
    plane.stop_api()
    with pytest.raises(BROKEN):
        put(through, namespace, "while-away")
    plane.start_api()
    put(through, namespace, "back")

    def usable() -> bool:
        return plane.cluster.find("configmaps", "back", namespace=namespace) is not None

    wait_for("the same data as before", usable)
