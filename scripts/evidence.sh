#!/usr/bin/env bash
# Checks the figures of docs/evidence/NAME/ and the promises in the documents. Exit 0 only if all of them hold.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/evidence.py" "$@"
