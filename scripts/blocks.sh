#!/usr/bin/env bash
# Runs the tests of adapters with the real libraries: datatrove and Hugging Face datasets. The virtual environment
# .cache/blocks has ledgerbeam beside them, as a user installs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1 folder=$2
shift 2
test -x "$folder/bin/uv" || { "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet uv; }
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --editable '.[datatrove]' 'datatrove==0.10.1' \
  'datasets==5.2.0' hypothesis pytest pytest-timeout pytest-xdist

# The libraries warn about newer versions of each other. Nothing here downloads: the tests write the assets.
export LEDGERBEAM_BLOCKS=1 HF_HUB_OFFLINE=1 HF_HOME="$PWD/$folder/hf"
exec "$folder/bin/python" -m pytest tests/adapters tests/user_code/test_adapters.py \
  -o filterwarnings=default --disable-warnings "$@"
