"""What tests on real nodes share."""

from node_fixtures import busybox, plane, product_images, site

__all__ = ["busybox", "plane", "product_images", "site"]
