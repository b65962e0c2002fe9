#!/usr/bin/env bash
# Prints the tables of benchmarks/. Usage: bench.sh [--small] [--long] [--full] [TABLE ...]
# It installs the other tools and the S3 server if they are missing. If that fails, the rows that need them say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/peers.sh || echo "bench: the other tools could not be installed; rows that need them are left out" >&2
.venv/bin/python -m tests.servers make minio ||
  echo "bench: the S3 server could not be installed; rows that need it are left out" >&2
exec .venv/bin/python -m benchmarks "$@"
