"""Volumes of the test cluster: folders that both nodes see, for any number of pods at once."""

import os
from typing import Any

from cluster_access import Cluster
from two_nodes.site import Site

STORAGE_CLASS = "shared"
VOLUMES = 9
SIZE = "20Gi"
"""What a volume says that it holds; a folder holds what the disk does."""
WORKER_USER = 1000
"""Volumes of this kind know no fsGroup, so their folders belong to the workers' user at once."""


def offer(site: Site, cluster: Cluster) -> None:
    """Make a default storage class and some volumes of it, unless they are there."""
    if cluster.find("storageclasses", STORAGE_CLASS) is not None:
        return
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    for number in range(VOLUMES):
        folder = site.volumes / f"{STORAGE_CLASS}-{number}"
        folder.mkdir(exist_ok=True)
        os.chown(folder, WORKER_USER, WORKER_USER)
        spec: dict[str, Any] = {
            "storageClassName": STORAGE_CLASS,
            "accessModes": ["ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany"],
            "capacity": {"storage": SIZE},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
        }
        cluster.create("persistentvolumes", {"metadata": {"name": folder.name}, "spec": spec})
    made = {"metadata": {"name": STORAGE_CLASS, "annotations": default}}
    cluster.create("storageclasses", made | {"provisioner": "kubernetes.io/no-provisioner"})
