#!/usr/bin/env bash
# Make or refresh the virtual environment; called by `make setup`, safe to run again.
# Usage: setup.sh VENV CONSTRAINTS
set -euo pipefail
venv=$1 constraints=$2
uv_version=0.13.9

suitable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "error: needs Python 3.11 or newer with venv and pip (Debian: python3-venv)" >&2
    return 1
}

# --version tells a whole environment from one whose making was interrupted
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

# uv only as the installer: it fetches and unpacks the large torch wheels about five times faster
# than pip. It does not read pip's settings, so an index that only pip knows is handed on.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
    if [ -n "$index" ]; then
        export UV_DEFAULT_INDEX=$index
    fi
fi
# Compiled once here: where PYTHONDONTWRITEBYTECODE is set every process would compile torch anew.
UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} "$venv/bin/uv" pip install --quiet --compile-bytecode \
    --python "$venv/bin/python" --editable ".[dev]" --constraints "$constraints"
