#!/usr/bin/env bash
# Install the Debian packages that the two-node cluster and its images need; called by
# `make cluster-up` and `make images`, safe to run again. Does nothing where all are there.
set -euo pipefail
packages=(
    containerd runc containernetworking-plugins   # nodes
    conntrack socat iptables ipset ebtables iproute2 openssl
    busybox-static   # pods of tests
    podman debootstrap   # images
)

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "error: missing packages: ${missing[*]}; install them, or run this as root on Debian" >&2
    exit 1
fi

# Two runs of make may come here at once.
exec 9>/run/lock/quantfleet-packages
flock 9

# The packages bring services (a containerd for the whole machine): nothing here uses them, so
# nothing starts them. The file is how Debian is told; one that is there already stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# another installation may hold the lock: wait for it
apt-get install -qq --yes -o DPkg::Lock::Timeout=300 --no-install-recommends "${missing[@]}" >/dev/null
