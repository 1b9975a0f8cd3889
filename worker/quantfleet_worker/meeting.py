"""How the ranks of a gang find each other: addresses, the store, and whether all have come.

Called by `run.py` at a rank's start. Pods of a gang start minutes apart, and a name of a cluster's
DNS may not be there yet: both are waited for, as long as `Rendezvous.seconds`. Who is missing then
is named. A rank that was asked to stop does not wait on.
"""

import ipaddress
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic, sleep

from quantfleet_api.errors import TryAgain
from quantfleet_worker.exchange import SharedStore, open_store, retriable, wait_for
from quantfleet_worker.messages import Rendezvous

LOOK_SECONDS = 0.5
"""Between two tries to reach rank 0."""
TRY_SECONDS = 5.0
"""Longest single try, so that a stop is heard."""
STORE_SECONDS = 60.0
"""For the store of a rank 0 that answers already."""


def open_meeting(rendezvous: Rendezvous) -> SharedStore:
    """Rank 0: host the store; its port tells where."""
    return open_store(rendezvous, timeout=timedelta(seconds=STORE_SECONDS))


def reach_meeting(
    rendezvous: Rendezvous, *, port: int, should_stop: Callable[[], None]
) -> SharedStore:
    """Any other rank: the store of rank 0, once that listens; TryAgain where it never does."""
    wait_for_listener(rendezvous.host, port, seconds=rendezvous.seconds, should_stop=should_stop)
    return open_store(rendezvous, port=port, timeout=timedelta(seconds=STORE_SECONDS))


def wait_for_listener(
    host: str, port: int, *, seconds: float, should_stop: Callable[[], None]
) -> None:
    """Return when somebody listens there; a name that is not known yet is asked for again."""
    deadline = monotonic() + seconds
    while True:
        should_stop()
        left = deadline - monotonic()
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(TRY_SECONDS, left))).close()
            return
        except OSError as error:
            if left <= 0:
                raise TryAgain(_unreached(host, port, seconds, error)) from error
        sleep(min(LOOK_SECONDS, max(0.0, left)))


def _unreached(host: str, port: int, seconds: float, error: OSError) -> str:
    pod = "" if _is_address(host) else f" ({host.partition('.')[0]})"
    why = "its name has no address" if isinstance(error, socket.gaierror) else str(error)
    return f"pod 0{pod} is missing: {host}:{port} was not reached within {seconds:.0f} s: {why}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def wait_for_everyone(
    store: SharedStore, rendezvous: Rendezvous, *, should_stop: Callable[[], None]
) -> None:
    """Return when every rank of the gang is here; TryAgain names the pods that are missing."""
    size, deadline = rendezvous.world_size, monotonic() + rendezvous.seconds

    def look() -> None:
        should_stop()
        if monotonic() > deadline:
            missing = [rank for rank in range(size) if not store.check([f"here/{rank}"])]
            who = missing_pods(missing, rendezvous.processes)
            raise TryAgain(f"{who} missing: waited {rendezvous.seconds:.0f} s for all ranks")

    with retriable("meeting"):
        store.set(f"here/{rendezvous.rank}", "1")
        if store.add("here", 1) == size:
            store.set("all-here", "1")
        wait_for(store, ["all-here"], look)


def missing_pods(ranks: Sequence[int], processes: int) -> str:
    """For example `pod 1 is` or `pods 1, 2 and 7 more are`, of the ranks that did not come."""
    pods = sorted({rank // processes for rank in ranks})
    if len(pods) == 1:
        return f"pod {pods[0]} is"
    shown, rest = pods[:8], len(pods) - 8
    return f"pods {', '.join(map(str, shown))}{f' and {rest} more' if rest > 0 else ''} are"
