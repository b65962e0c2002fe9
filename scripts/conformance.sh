#!/usr/bin/env bash
# Runs the conformance tests: lhotse, webdataset, Energon and Megatron read our files, and we read theirs. Then we read
# tar archives that other programs wrote.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/peers.sh
scripts/fetch_corpus.sh
LEDGERBEAM_CONFORMANCE=1 exec .venv/bin/python -m pytest tests/conformance "$@"
