#!/usr/bin/env bash
# Installs what the worker image is built with, buildah and debootstrap, from the distribution's packages. Where that
# cannot be, it says why and ends well: the image's row of the matrix is then skipped, and the others are not held up.
set -euo pipefail

TOOLS=(buildah debootstrap)

leave_out() {
  echo "image-tools: $1; the worker image is left out" >&2
  exit 0
}

[[ $(command -v "${TOOLS[@]}" | wc -l) == "${#TOOLS[@]}" ]] && exit 0
((EUID == 0)) || leave_out "packages are installed by root, and so are images built"
command -v apt-get >/dev/null || leave_out "no apt-get here: install ${TOOLS[*]} by other means"
export DEBIAN_FRONTEND=noninteractive
waits=(-qq -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120)
timeout 300 apt-get "${waits[@]}" update || echo "image-tools: the lists of packages are old" >&2
timeout 300 apt-get "${waits[@]}" install --yes --no-install-recommends "${TOOLS[@]}" ||
  leave_out "apt-get could not install ${TOOLS[*]}"
