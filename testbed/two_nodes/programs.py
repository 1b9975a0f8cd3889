"""Programs that run on after the command which started them: started, found again, stopped."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from two_nodes import control_groups
from two_nodes.site import ClusterError, Site

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STOP_SECONDS = 20.0
IN_GROUPS = """
cd /
while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done
shift
exec "$@"
"""
"""The shell joins the groups before it becomes the program, so no child can be outside."""


def log_of(site: Site, name: str) -> Path:
    """What a program said, over all its starts."""
    return site.folder / "logs" / f"{name}.log"


def start(site: Site, name: str, command: Sequence[str]) -> None:
    """Start a program in the cluster's group, and record its pid with its time of start."""
    log, temporary = log_of(site, name), site.folder / "tmp"
    for folder in (log.parent, _record(site, name).parent, temporary):
        folder.mkdir(parents=True, exist_ok=True)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    groups = [str(group) for group in control_groups.program_groups(site)]
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", IN_GROUPS, "sh", *groups, "--", *command],
        {"PATH": SEARCH_PATH, "HOME": str(site.folder), "TMPDIR": str(temporary)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_CLOSE, number) for number in _inherited()),
        ],
        setsid=True,
    )
    _record(site, name).write_text(json.dumps({"pid": pid, "started": _started(pid)}))


def _inherited() -> list[int]:
    """Open files that a child would get, and keep for life: a lock or a pipe of our caller."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    found = []
    for number in numbers:
        with suppress(OSError):  # the listing's own
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def pid_of(site: Site, name: str) -> int | None:
    """The pid of a program that runs; a number that is another process's by now is not it."""
    try:
        recorded = json.loads(_record(site, name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    pid = int(recorded["pid"])
    return pid if _started(pid) == recorded["started"] is not None else None


def ended(site: Site) -> list[str]:
    """Programs that were started, and that ended without being told to."""
    names = [path.stem for path in (site.folder / "programs").glob("*.json")]
    return [name for name in names if pid_of(site, name) is None]


def stop(site: Site, name: str, *, kill: bool = False) -> None:
    """End a program and wait for it: SIGTERM first, or SIGKILL at once as in a crash."""
    pid = pid_of(site, name)
    if pid is None:
        return
    handle = os.pidfd_open(pid)
    try:
        for number in [signal.SIGKILL] if kill else [signal.SIGTERM, signal.SIGKILL]:
            if pid_of(site, name) == pid:
                signal.pidfd_send_signal(handle, number)
            if _gone(site, name):
                _record(site, name).unlink()
                return
    finally:
        os.close(handle)
    raise ClusterError(f"{name} (pid {pid}) does not end")


def wait_until(what: str, condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Ask until the answer is yes; ClusterError names what did not come about."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def wait_running(
    site: Site, name: str, condition: Callable[[], bool], *, seconds: float = 60.0
) -> None:
    """The same for a program to become ready; with the end of its log when it does not."""

    def ready() -> bool:
        if pid_of(site, name) is None:
            raise ClusterError(f"{name} ended:\n{tail(site, name)}")
        return condition()

    try:
        wait_until(f"{name} ready", ready, seconds=seconds)
    except ClusterError as error:
        raise ClusterError(f"{error}\n{tail(site, name)}") from None


def tail(site: Site, name: str, lines: int = 20) -> str:
    """The end of a program's log."""
    try:
        return "\n".join(log_of(site, name).read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _record(site: Site, name: str) -> Path:
    return site.folder / "programs" / f"{name}.json"


def _gone(site: Site, name: str) -> bool:
    deadline = time.monotonic() + STOP_SECONDS
    while pid_of(site, name) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of a living process; None for one that has ended."""
    with suppress(OSError, ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended would stay in the list
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
