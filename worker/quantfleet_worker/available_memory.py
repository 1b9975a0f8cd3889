"""How much memory this machine and this container still have.

Called by preflight and by the choice of the number of ranks. A container sees the whole machine in
/proc/meminfo; what it may use is the limit of its control group (version 1 or 2) and of those above
it.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_NO_LIMIT = 1 << 60  # version 1 writes a huge number where there is no limit


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that processes started now can use; None where the system does not tell.

    `root` is where /proc and /sys are looked for.
    """
    found = [*_of_machine(root), *_of_groups(root)]
    return min(found, default=None)


def _of_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """What is left of each limit; page cache that can go counts as free."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _left(root / "sys/fs/cgroup/memory", path, *names)


def _left(mount: Path, path: str, limit_name: str, usage_name: str) -> Iterator[int]:
    """Of the group and all above it. In a container the mount often is the group itself."""
    inner = PurePosixPath(path.lstrip("/"))
    for group in [mount / inner, *(mount / parent for parent in inner.parents), mount]:
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is None or limit >= _NO_LIMIT or usage is None:
            continue
        yield max(0, limit - max(0, usage - _reclaimable(group)))


def _reclaimable(group: Path) -> int:
    pairs = (line.split(" ") for line in _lines(group / "memory.stat"))
    # version 1 has the group's own pages and, under total_, those of the groups in it too
    files = {"inactive_file", "total_inactive_file"}
    return max((int(value) for name, value in pairs if name in files), default=0)


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
