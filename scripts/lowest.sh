#!/usr/bin/env bash
# Runs the quick tests of io, ledger, sources, iterators and transforms on the lowest versions of our dependencies that
# pyproject.toml allows. Usage: scripts/lowest.sh PYTHON FOLDER. It creates a virtual environment in FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1 folder=$2
test -x "$folder/bin/uv" || { "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet uv; }
# Our dependencies in their lowest versions, and their dependencies in the newest ones. Only wheels: old sdists may not
# compile here.
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --upgrade --resolution lowest-direct \
  --only-binary :all: --no-binary ledgerbeam --editable '.[test]'
"$folder/bin/uv" pip freeze --python "$folder/bin/python" | grep -iE "^($(
  sed -n '/^dependencies = \[/,/^\]/p' pyproject.toml | grep -oE '"[a-z-]+' | tr -d '"' | paste -sd '|'
))=="

run() { # Old versions warn about newer Pythons and packages; the suite makes warnings errors on the newest version only.
  "$folder/bin/python" -m pytest "$@" -o filterwarnings=default --disable-warnings --numprocesses auto --dist worksteal
}
run tests/io tests/ledger tests/sources tests/iterators tests/transforms -m 'not slow and not long and not engines'

# The clients of object stores need a newer fsspec than we do. So test the lowest version of fsspec without the clients.
"$folder/bin/uv" pip uninstall --quiet --python "$folder/bin/python" s3fs gcsfs adlfs
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --upgrade --resolution lowest-direct \
  --only-binary :all: --no-binary ledgerbeam --editable .
run tests/io/storage -m 'not slow and not long and not s3 and not stores'
