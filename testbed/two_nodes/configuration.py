"""The configuration files of a node's programs, from the site alone."""

import json
from pathlib import Path
from typing import Any

from two_nodes.site import COVERED, Node, Site

CLUSTER_DOMAIN = "cluster.local"
PAUSE_IMAGE = "docker.io/library/quantfleet-pause:1"
PLUGINS = "/usr/lib/cni"
KEPT_BYTES = 2 << 30
"""What the host and the control plane need; the nodes share the rest."""
STATUS_SECONDS = 4
"""Between two reports of a kubelet: the default of 10 with the grace period that goes with it
would make tests of lost nodes wait."""


def containerd_toml(node: Node, *, root: Path) -> str:
    """No plugin that needs a special file system; shims and state stay in the node's /run."""
    return f"""\
version = 2
root = "{root}"
state = "{COVERED[0]}/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.internal.v1.opt"]
path = "{node.folder}/opt"
[grpc]
address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{node.folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def network_json(site: Site, node: Node) -> str:
    """Pods on a bridge of the node's; addresses are not masked, so policies see the pods."""
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pod_range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    network = {"cniVersion": "0.4.0", "name": site.group, "plugins": [bridge, portmap]}
    return json.dumps(network)


def kubelet_yaml(site: Site, node: Node) -> dict[str, Any]:
    """Anonymous access is safe where only the host, the nodes and test pods can reach it."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.group,
        "cgroupsPerQOS": True,
        "clusterDNS": [site.gateway],
        "clusterDomain": CLUSTER_DOMAIN,
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%"}
        | {"imagefs.available": "0%", "nodefs.inodesFree": "0%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "nodeLeaseDurationSeconds": 5 * STATUS_SECONDS,
        "nodeStatusUpdateFrequency": f"{STATUS_SECONDS}s",
        "podLogsDir": f"{node.folder}/pods",
        "podPidsLimit": 4096,
        "registerNode": True,
        "resolvConf": f"{node.folder}/resolv.conf",
        "serializeImagePulls": False,
        "systemReserved": {"memory": str(_reserved_bytes())},
    }


def proxy_yaml(site: Site, node: Node) -> dict[str, Any]:
    """Services by iptables of the node's own network namespace."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(site.kubeconfig)},
        "hostnameOverride": node.name,
        "mode": "iptables",
        "clusterCIDR": f"{site.gateway.rsplit('.', 2)[0]}.0.0/16",
        "conntrack": {"maxPerCore": 0},
        "iptables": {"syncPeriod": "30s", "minSyncPeriod": "0s"},
    }


def _reserved_bytes() -> int:
    """Of the memory that a node sees, which is the machine's, what is not for its pods."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return (total + KEPT_BYTES) // 2
