#!/usr/bin/env bash
# Installs buildah and debootstrap, which build the worker image, from packages of the distribution. If it cannot, it
# prints the reason and ends with status 0: the row of the image in the matrix is then skipped, and the others run.
set -euo pipefail

TOOLS=(buildah debootstrap)

leave_out() {
  echo "image-tools: $1; the worker image is not built" >&2
  exit 0
}

[[ $(command -v "${TOOLS[@]}" | wc -l) == "${#TOOLS[@]}" ]] && exit 0
((EUID == 0)) || leave_out "only root can install packages and build images: run it as root"
command -v apt-get >/dev/null || leave_out "apt-get is not installed: install ${TOOLS[*]} in another way"
export DEBIAN_FRONTEND=noninteractive
waits=(-qq -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120)
timeout 300 apt-get "${waits[@]}" update || echo "image-tools: apt-get update failed; using the old lists of packages" >&2
timeout 300 apt-get "${waits[@]}" install --yes --no-install-recommends "${TOOLS[@]}" ||
  leave_out "apt-get could not install ${TOOLS[*]}"
