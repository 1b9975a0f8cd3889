"""What tests on real nodes share."""

from node_fixtures import busybox, kind_site, plane, product_images, site

__all__ = ["busybox", "kind_site", "plane", "product_images", "site"]
