#!/bin/bash
# Set CANN's environment, then run the program of the same name as this file from the image's
# Python environment. Dockerfile.npu puts it into PATH as `python` and as `quantfleet`.
set -eo pipefail   # not -u: CANN's script reads variables that may be unset
# shellcheck source=/dev/null
source "${CANN_ENVIRONMENT:-/usr/local/Ascend/ascend-toolkit/set_env.sh}"
exec "${QUANTFLEET_PROGRAMS:-/opt/quantfleet/bin}/$(basename "$0")" "$@"
