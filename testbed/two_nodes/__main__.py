"""`python -m two_nodes COMMAND`: what `make cluster-up` and `make cluster-down` run."""

import argparse
import os
import sys
import time

from control_plane import running_plane
from two_nodes import images, kind, lifecycle, release, volumes
from two_nodes.site import ClusterError, Site, this_site


def main(arguments: list[str]) -> int:
    """Run a command; exit status 1 with one line when the cluster cannot be made."""
    parser = argparse.ArgumentParser(prog="two_nodes")
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument("--bare", action="store_true", help="without our images and the chart")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        site = this_site()
        with lifecycle.exclusive_site(site):
            if asked.command == "up":
                _up(site, bare=asked.bare)
            else:
                _down(site)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{asked.command} after {time.monotonic() - began:.1f} s")
    return 0


def _up(site: Site, *, bare: bool) -> None:
    archives = [] if bare else images.built_archives()
    by_kind = kind.wanted()
    if by_kind:
        kind.up(site)
    else:
        _demand_root()
        lifecycle.up(site, print, archives)
        volumes.offer(site, running_plane(site.kubeconfig).cluster)
    if archives:
        if by_kind:
            kind.load(site, archives)
        print("installing the chart")
        release.install(site)
    print(f"export KUBECONFIG={site.kubeconfig}")


def _down(site: Site) -> None:
    if kind.is_made(site):
        kind.down(site)
    else:
        _demand_root()
        lifecycle.down(site)


def _demand_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("nodes need root: namespaces, mounts and control groups")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
