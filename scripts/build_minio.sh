#!/usr/bin/env bash
# Builds the S3 server that the tests run against, once, at a pinned version. Usage: build_minio.sh DIRECTORY
set -euo pipefail
VERSION=v0.0.0-20260212201848-7aac2a2c5b7c
target=$(mkdir -p "$1" && cd "$1" && pwd)
command -v go >/dev/null || { echo "make servers needs Go 1.24 or newer on PATH to build MinIO" >&2; exit 1; }
GOBIN="$target" GOFLAGS=-mod=mod go install "github.com/minio/minio@$VERSION"
