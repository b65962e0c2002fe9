#!/usr/bin/env bash
# Runs the tests of Beam's internals, and of pipelines of users, on the oldest version of Beam that pyproject.toml
# allows. Usage: scripts/oldest-beam.sh PYTHON FOLDER. It creates a virtual environment in FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1 folder=$2
oldest=$(sed -n 's/^  "apache-beam>=\([0-9.]*\),.*/\1/p' pyproject.toml)
test -x "$folder/bin/uv" || { "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet uv; }
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --only-binary :all: --no-binary ledgerbeam \
  --editable '.[s3]' "apache-beam==$oldest.*" hypothesis 'moto[server]' pytest pytest-timeout pytest-xdist

# Old versions warn about newer Pythons and packages; the suite makes warnings errors on the newest version only.
"$folder/bin/python" -m pytest tests/pipelines/runners/test_fn_api.py tests/pipelines/test_own_pipeline.py \
  -m 'not long and not engines' -o filterwarnings=default --disable-warnings --numprocesses auto
