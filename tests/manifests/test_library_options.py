"""What the communication libraries are told where a job says nothing of it."""

import pytest

from quantfleet_api.spec import Workers
from quantfleet_operator.manifests.environment import library_options
from quantfleet_operator.manifests.pod import BEGIN_SECONDS

HCCL_DEFAULT_CONNECT_SECONDS = 120
PODS_START_APART_SECONDS = 300
"""An image of many gigabytes is pulled in minutes, on some nodes only."""


@pytest.mark.parametrize(("begin", "waits"), [(30, 120), (900, 900), (86_400, 3600)])
def test_hccl_waits_as_long_as_workers_do(begin: int, waits: int) -> None:
    workers = Workers(device_resource_name="huawei.com/Ascend910", devices_per_worker=8)
    options = library_options(workers, begin_seconds=begin)
    assert int(options["HCCL_CONNECT_TIMEOUT"]) == waits
    assert waits <= int(options["HCCL_EXEC_TIMEOUT"])


def test_without_a_deadline_workers_that_start_late_are_waited_for() -> None:
    assert BEGIN_SECONDS > HCCL_DEFAULT_CONNECT_SECONDS + PODS_START_APART_SECONDS
