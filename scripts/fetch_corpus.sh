#!/usr/bin/env bash
# Fetches packages with the registries' own clients and unpacks their compression, so that .cache/corpus holds tar
# archives as different tools write them. A client that this machine lacks is left out; what is there is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SDISTS=(six==1.17.0 attrs==25.3.0 lmdb==1.7.5 tomli==2.2.1 idna==3.10 packaging==25.0)
NPM=(left-pad@1.3.0 ms@2.1.3 semver@7.7.2 @types/node@22.15.0)
CRATES=(itoa=1.0.15 memchr=2.7.4)
DEBS=(tzdata hostname netbase) # of the distribution's present version

corpus=$PWD/.cache/corpus complete=yes
wanted="${SDISTS[*]} ${NPM[*]} ${CRATES[*]} ${DEBS[*]}"
[[ -f $corpus/.ready && $(<"$corpus/.ready") == "$wanted" ]] && exit 0
mkdir -p "$corpus"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() { # CLIENT COMMAND ...: runs a command in the work folder if there is a client for it
  local client=$1
  shift
  command -v "$client" >/dev/null || [[ -x $client ]] || { echo "corpus: no $client here; left out" >&2; return 0; }
  (cd "$work" && "$@" >&2) || { echo "corpus: $client failed; left out until the next run" >&2; complete=; }
}

fetch_crates() {
  mkdir -p crates/src && : >crates/src/lib.rs
  printf '[package]\nname = "corpus"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n' >crates/Cargo.toml
  printf '%s\n' "${CRATES[@]}" | sed 's/\(.*\)=\(.*\)/\1 = "=\2"/' >>crates/Cargo.toml
  CARGO_HOME=$PWD/cargo cargo fetch --quiet --manifest-path crates/Cargo.toml
  find cargo -name '*.crate' -exec cp {} . \;
}

fetch_debs() {
  apt-get download -qq "${DEBS[@]}"
  for package in *.deb; do
    dpkg-deb --fsys-tarfile "$package" >"${package%.deb}.tar"
    dpkg-deb --ctrl-tarfile "$package" >"${package%.deb}-control.tar"
  done
}

fetch "$PWD/.venv/bin/python" "$PWD/.venv/bin/python" -m pip download --quiet --no-deps --no-binary :all: "${SDISTS[@]}"
fetch npm npm pack --silent "${NPM[@]}"
fetch cargo fetch_crates
fetch apt-get fetch_debs

shopt -s nullglob
for archive in "$work"/*.tar.gz "$work"/*.tgz "$work"/*.crate; do
  name=$(basename "$archive")
  name=${name%.tar.gz} name=${name%.tgz} name=${name%.crate}
  gzip -dc "$archive" >"$work/$name.tar"
done
for archive in "$work"/*.tar; do mv "$archive" "$corpus/"; done
[[ -z $complete ]] || echo "$wanted" >"$corpus/.ready"
echo "corpus: $(find "$corpus" -name '*.tar' | wc -l) archives in $corpus" >&2
