#!/usr/bin/env bash
# Downloads packages with pip, npm, cargo and apt, and decompresses them: .cache/corpus then has tar archives of
# different tools. A client that this machine does not have is left out. Archives of earlier calls are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SDISTS=(six==1.17.0 attrs==25.3.0 lmdb==1.7.5 tomli==2.2.1 idna==3.10 packaging==25.0)
NPM=(left-pad@1.3.0 ms@2.1.3 semver@7.7.2 @types/node@22.15.0)
CRATES=(itoa=1.0.15 memchr=2.7.4)
DEBS=(tzdata hostname netbase) # in the version of this machine's distribution

corpus=$PWD/.cache/corpus complete=yes
wanted="${SDISTS[*]} ${NPM[*]} ${CRATES[*]} ${DEBS[*]}"
[[ -f $corpus/.ready && $(<"$corpus/.ready") == "$wanted" ]] && exit 0
mkdir -p "$corpus"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() { # CLIENT COMMAND ...: runs a command in the work folder if its client is installed
  local client=$1
  shift
  command -v "$client" >/dev/null || [[ -x $client ]] || { echo "corpus: $client is not installed; its archives are left out" >&2; return 0; }
  (cd "$work" && "$@" >&2) || { echo "corpus: $client failed; its archives are left out. Run this again" >&2; complete=; }
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
