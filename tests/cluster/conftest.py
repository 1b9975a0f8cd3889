"""What tests on real nodes share."""

from node_fixtures import busybox, kind_site, plane, product_images, site
from real_fixtures import (
    expected,
    expected_of_eight,
    figures,
    installed,
    shared_ground,
    worker_image,
)

__all__ = [
    "busybox",
    "expected",
    "expected_of_eight",
    "figures",
    "installed",
    "kind_site",
    "plane",
    "product_images",
    "shared_ground",
    "site",
    "worker_image",
]
