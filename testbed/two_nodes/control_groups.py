"""The control group that holds every process of a cluster: how all of them are found and ended.

Works on version 1, on version 2 and on both at once. A group cannot be left by accident, is
inherited from the first instruction on, and unlike a list of pids survives every crash.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from two_nodes.site import NODE_NUMBERS, ClusterError, Node, Site

END_SECONDS = 60.0


def hierarchies() -> dict[Path, str]:
    """Mount points of all hierarchies, and the controllers of those of version 1 ("" for 2)."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()
        if kind in ("cgroup", "cgroup2"):
            found[Path(before.split()[4])] = options if kind == "cgroup" else ""
    return found


def program_groups(site: Site) -> list[Path]:
    """The groups that programs of the host and of the nodes are started in."""
    return [mount / site.group / "programs" for mount in hierarchies()]


def pods_group(node: Node) -> Path:
    """The group above those of a node's pods, in one hierarchy that all containers are in."""
    mounts = hierarchies()
    version_1 = [mount for mount, options in mounts.items() if "pids" in options.split(",")]
    return (version_1 or list(mounts))[0] / node.group.lstrip("/")


def create(site: Site) -> None:
    """A group for the programs, and one for the pods of each node, in every hierarchy."""
    for mount, options in hierarchies().items():
        for name in ("", "programs", *[f"node-{number}" for number in NODE_NUMBERS]):
            group = mount / site.group / name
            group.mkdir(exist_ok=True)
            if "cpuset" in options.split(","):  # a new group has no CPUs, so nothing can enter it
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (group / setting).write_text((group.parent / setting).read_text())


def exists(site: Site) -> bool:
    """Whether there is anything left of the group."""
    return any((mount / site.group).exists() for mount in hierarchies())


def members(group: Path) -> Iterator[int]:
    """Pids of all processes in a group and below it; some may have ended since."""
    for folder, _, _ in os.walk(group):
        with suppress(OSError):  # the group is gone
            yield from map(int, (Path(folder) / "cgroup.procs").read_text().split())


def remove(site: Site) -> None:
    """Kill every process of the cluster, and remove its groups."""
    deadline = time.monotonic() + END_SECONDS
    groups = [mount / site.group for mount in hierarchies()]
    while pids := {pid for group in groups for pid in members(group)}:
        for pid in pids:
            _kill(pid, site.group)
        _wait(deadline, f"processes do not end: {sorted(pids)}")
    for group in groups:
        while group.exists():
            for folder, _, _ in os.walk(group, topdown=False):
                with suppress(OSError):  # the kernel still clears it
                    os.rmdir(folder)
            _wait(deadline, f"{group} cannot be removed")


def _kill(pid: int, group: str) -> None:
    """SIGKILL to a process that is still in the group: its pid may be another's by now."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        with suppress(OSError):
            if f"/{group}" in Path(f"/proc/{pid}/cgroup").read_text():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def _wait(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise ClusterError(what)
    time.sleep(0.02)
