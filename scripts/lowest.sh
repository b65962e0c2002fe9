#!/usr/bin/env bash
# Runs the quick tests of io, ledger, iterators and transforms on the lowest versions of our dependencies that
# pyproject.toml allows. Usage: scripts/lowest.sh PYTHON FOLDER: the environment is made in FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1 folder=$2
test -x "$folder/bin/uv" || { "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet uv; }
# Direct dependencies at their lowest; theirs at the newest that fit. Old sdists need not compile here.
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --upgrade --resolution lowest-direct \
  --only-binary :all: --no-binary ledgerbeam --editable '.[test]'
"$folder/bin/uv" pip freeze --python "$folder/bin/python" | grep -iE "^($(
  sed -n '/^dependencies = \[/,/^\]/p' pyproject.toml | grep -oE '"[a-z-]+' | tr -d '"' | paste -sd '|'
))=="

run() { # Old versions warn of what is newer than they are; the suite holds warnings for errors on the newest.
  "$folder/bin/python" -m pytest "$@" -o filterwarnings=default --disable-warnings --numprocesses auto --dist worksteal
}
run tests/io tests/ledger tests/sources tests/iterators tests/transforms -m 'not slow and not long and not engines'

# The clients of stores need a newer fsspec than we do, so its lowest version is tested without them.
"$folder/bin/uv" pip uninstall --quiet --python "$folder/bin/python" s3fs gcsfs adlfs
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --upgrade --resolution lowest-direct \
  --only-binary :all: --no-binary ledgerbeam --editable .
run tests/io/storage -m 'not slow and not long and not s3 and not stores'
