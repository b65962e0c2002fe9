"""Files of others where metadata is to be written: told from metadata by how they begin, and left as they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage import files
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.pipelines.outputs import metadata as looks

refuse_foreign = partial(files.refuse_foreign, kind="one of this metadata")

KINDS = {
    "wids.json": looks.WIDS,
    "config.json": looks.CONFIG_OF_LIT,
    "train.idx.json": looks.INDEX_OF_LIT,
    "fields.json": looks.FIELDS_OF_SHAR,
    "index.idxpack": looks.PACK,
    **looks.META_OF_ENERGON,
}
OTHERS = [b"", b"notes\n", b"{}", b'{"model_type": "gpt2", "n_layer": 12}', b"[1, 2]", bytes(range(256)) * 300]


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_others_is_named_and_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    refuse_foreign({str(path): KINDS[name]}, {})
    for content in OTHERS[:2] if name == "train.idx.json" else OTHERS:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"{name}: expected no file.*move it away"):
            refuse_foreign({str(path): KINDS[name]}, {})
        assert path.read_bytes() == content


def test_it_is_looked_for_in_a_store_too() -> None:
    url = "memory://foreign/wids.json"
    refuse_foreign({url: looks.WIDS}, {})
    publish_bytes(url, b"mine")
    with pytest.raises(UsageError, match=url):
        refuse_foreign({url: looks.WIDS}, {})
    publish_bytes(url, b'{"__kind__": "wids-shard-index-v1"}')
    refuse_foreign({url: looks.WIDS}, {})
