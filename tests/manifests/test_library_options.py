"""What the communication libraries are told where a job says nothing of it."""

from quantfleet_api.spec import Workers
from quantfleet_operator.manifests.environment import library_options

HCCL_DEFAULT_CONNECT_SECONDS = 120
PODS_START_APART_SECONDS = 300
"""An image of many gigabytes is pulled in minutes, on some nodes only."""


def test_hccl_waits_for_workers_that_start_late() -> None:
    workers = Workers(device_resource_name="huawei.com/Ascend910", devices_per_worker=8)
    options = library_options(workers)
    waits = int(options["HCCL_CONNECT_TIMEOUT"])
    assert waits > HCCL_DEFAULT_CONNECT_SECONDS + PODS_START_APART_SECONDS
    assert waits <= int(options["HCCL_EXEC_TIMEOUT"])
