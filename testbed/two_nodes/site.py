"""Where a cluster is on this machine: its folder, and the names and addresses that follow from it.

Names derive from the folder, so that every clone of the project finds its own leftovers, also
when nothing was recorded, and never touches another's. Only the subnet is chosen and recorded.
"""

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_NUMBERS = (1, 2)
API_PORT = 6443
SUBNET_OCTETS: list[int] = [*range(88, 96), *range(97, 120)]
"""10.N.0.0/16 with the first N that is free; 10.96 is the range of Services."""
MOST_PATH_BYTES = 64
"""A socket's path may have 107 bytes, and a kubelet's ends in 42 after this folder."""
COVERED = (Path("/run"), Path("/var/lib"), Path("/var/log"))
"""A node sees empty folders there: programs write there without asking."""


class ClusterError(Exception):
    """The cluster cannot be made or used; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One of the two nodes."""

    number: int
    name: str
    address: str
    pod_range: str
    interface: str  # the host's end of the node's cable
    group: str  # control group of its pods, from the root of the hierarchy
    folder: Path

    @property
    def socket(self) -> Path:
        """Where its containerd listens; the host reaches it too."""
        return self.folder / "containerd.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What does not follow from the folder, recorded before anything is made."""

    octet: int
    etcd_port: int
    admin_token: str
    node_tokens: list[str]
    sysctls: dict[str, str]  # values of the host that a kubelet changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A cluster's place; nothing need run there."""

    folder: Path

    @property
    def group(self) -> str:
        """Name of its control group and bridge, and prefix of the nodes' interfaces."""
        return "qf-" + hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:6]

    @property
    def record(self) -> Path:
        return self.folder / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        """For the admin; there once the cluster is up."""
        return self.folder / "kubeconfig"

    @property
    def volumes(self) -> Path:
        """A folder that both nodes see, for hostPath volumes."""
        return self.folder / "volumes"

    @property
    def chosen(self) -> Chosen:
        """What was recorded; ClusterError where no cluster was made."""
        try:
            return Chosen(**json.loads(self.record.read_text()))
        except FileNotFoundError:
            raise ClusterError(f"no cluster in {self.folder}: run `make cluster-up`") from None

    @property
    def gateway(self) -> str:
        """The host as nodes and pods see it; API server and DNS listen there."""
        return f"10.{self.chosen.octet}.255.1"

    @property
    def nodes(self) -> tuple[Node, ...]:
        octet = self.chosen.octet
        return tuple(
            Node(
                number=number,
                name=f"node-{number}",
                address=f"10.{octet}.255.1{number}",
                pod_range=f"10.{octet}.{number}.0/24",
                interface=f"{self.group}-{number}",
                group=f"/{self.group}/node-{number}",
                folder=self.folder / f"node-{number}",
            )
            for number in NODE_NUMBERS
        )

    def write(self, chosen: Chosen) -> None:
        """Record what was chosen, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.record.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(asdict(chosen)))
        new.rename(self.record)


def cache_folder() -> Path:
    """What make builds and fetches lies there."""
    return Path(os.environ.get("QUANTFLEET_CACHE") or REPOSITORY / ".cache").resolve()


def this_site() -> Site:
    """The cluster of this clone; ClusterError where its folder cannot serve."""
    folder = cache_folder() / "cluster"
    if len(os.fsencode(folder)) > MOST_PATH_BYTES:
        raise ClusterError(f"{folder}: path too long for sockets; set QUANTFLEET_CACHE")
    if any(folder.is_relative_to(covered) for covered in COVERED):
        hidden = ", ".join(map(str, COVERED))
        raise ClusterError(f"{folder}: nodes do not see {hidden}; set QUANTFLEET_CACHE")
    return Site(folder=folder)


def new_token() -> str:
    """A bearer token that pods on the same network cannot guess."""
    return secrets.token_urlsafe(24)
