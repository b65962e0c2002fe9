"""Merges jars into one.

A job server of Beam sends every jar of its class path to the cluster with every job. Flink's protocol takes some 90 ms
for each, whatever its size, so that 160 jars cost 15 s of waiting and one costs two.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

_SIGNATURES = (".SF", ".DSA", ".RSA", ".EC")
# Lists of implementations: a program must see those of all jars.
_JOINED = ("META-INF/services/", "reference.conf")
_MANIFEST = "META-INF/MANIFEST.MF"


def merge_jars(jars: Sequence[Path], target: Path) -> None:
    """Write one jar with the content of several.

    Args:
        jars: In the order of a class path: of two files of one name the first one counts. Lists of services are joined.
        target: The jar to write.
    """
    joined: dict[str, list[bytes]] = {}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as merged:
        merged.writestr(_MANIFEST, "Manifest-Version: 1.0\r\nMulti-Release: true\r\n\r\n")
        seen = {_MANIFEST}
        for path in jars:
            with zipfile.ZipFile(path) as jar:
                for info in jar.infolist():
                    name = info.filename
                    if name.startswith(_JOINED) and not info.is_dir():
                        joined.setdefault(name, []).append(jar.read(info))
                    elif not (name in seen or info.is_dir() or _unwanted(name)):
                        seen.add(name)
                        merged.writestr(info, jar.read(info), zipfile.ZIP_DEFLATED, 1)
        for name, parts in joined.items():
            merged.writestr(name, b"\n".join(parts))


def _unwanted(name: str) -> bool:
    signature = name.startswith("META-INF/") and name.endswith(_SIGNATURES)
    return signature or name.endswith("module-info.class")
