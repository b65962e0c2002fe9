#!/usr/bin/env bash
# Lets lhotse, webdataset, Energon and Megatron judge our formats, and ours theirs; then the walk against real archives.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/peers.sh
scripts/fetch_corpus.sh
LEDGERBEAM_CONFORMANCE=1 exec .venv/bin/python -m pytest tests/conformance "$@"
