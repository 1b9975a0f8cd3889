#!/usr/bin/env bash
# Build the programs of a real Kubernetes, pinned by the Go modules under testbed/, for the tests.
# Called by `make kubernetes`; what is built already and not changed is left alone.
# Usage: build_kubernetes.sh FOLDER [PROGRAM...]     (PROGRAM: a row of the table below)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
shift
programs=("$@")
if [ ${#programs[@]} -eq 0 ]; then
    programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm)
fi

# module under testbed/ and package of a program
place_of() {
    case $1 in
        etcd) echo kubernetes go.etcd.io/etcd/server/v3 ;;
        kube-apiserver | kube-controller-manager | kube-scheduler | kubectl | kubelet | kube-proxy)
            echo kubernetes "k8s.io/kubernetes/cmd/$1" ;;
        helm) echo helm helm.sh/helm/v3/cmd/helm ;;
        coredns) echo coredns github.com/coredns/coredns ;;
        kube-router) echo kube-router github.com/cloudnativelabs/kube-router/v2/cmd/kube-router ;;
        kind) echo kind sigs.k8s.io/kind ;;
        pause) echo pause quantfleet.io/testbed/pause ;;
        *) echo "error: $1 is no program of testbed/" >&2 && return 1 ;;
    esac
}

find_go() {
    local candidate
    for candidate in "${GO:-}" "$(command -v go || true)" /usr/local/go/bin/go; do
        if [ -n "$candidate" ] && "$candidate" version >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo "error: the control-plane tests build a real Kubernetes and need Go 1.24 or newer" \
        "(https://go.dev/dl, then set PATH or GO)" >&2
    return 1
}

# an API server without a version calls itself v0.0.0 and charts with kubeVersion refuse it
ldflags_of() {
    local version minor
    version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$root/testbed/kubernetes/go.mod")
    minor=${version#v1.}
    case $1 in
        kube* ) echo "-s -w -X k8s.io/component-base/version.gitVersion=$version" \
            "-X k8s.io/component-base/version.gitMajor=1" \
            "-X k8s.io/component-base/version.gitMinor=${minor%%.*}" ;;
        *) echo "-s -w" ;;
    esac
}

build() {
    local program=$1 module package stamp
    read -r module package < <(place_of "$program")
    # all that the program depends on, and not this script, whose table grows
    stamp=$({ cat "$root/testbed/$module"/*; ldflags_of "$program"; } | sha256sum)
    if [ -x "$folder/$program" ] && [ "$(cat "$folder/.$program.stamp" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    go=${go:-$(find_go)}
    echo "building $program (the first time takes minutes)"
    # under another name first: a build that is cut short must not look like a program
    (cd "$root/testbed/$module" && CGO_ENABLED=0 "$go" build -trimpath -buildvcs=false \
        -ldflags "$(ldflags_of "$program")" -o "$folder/.$program.new" "$package")
    mv "$folder/.$program.new" "$folder/$program"
    echo "$stamp" >"$folder/.$program.stamp"
}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
exec 9>"$folder/.lock"
flock 9   # two runs of make share the folder
for program in "${programs[@]}"; do
    build "$program"
done
