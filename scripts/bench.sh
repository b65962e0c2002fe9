#!/usr/bin/env bash
# Prints the tables of benchmarks/. Usage: bench.sh [--small] [--long] [--full] [TABLE ...]
# Peers and the S3 server are made when they are missing; rows that need one that cannot be had say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/peers.sh || echo "bench: no peers' environment; rows that need it are left out" >&2
.venv/bin/python -m tests.servers make minio ||
  echo "bench: no S3 server; rows that need it are left out" >&2
exec .venv/bin/python -m benchmarks "$@"
