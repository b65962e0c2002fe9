"""Write LIT datasets: shards of each fold, their index, and the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import orjson

from ledgerbeam.errors import LedgerbeamError, RecordError, UsageError
from ledgerbeam.io.datasets.lit.codecs import Encoder, encoder_of
from ledgerbeam.io.datasets.lit.index import CONFIG, Members, index_name, require_fold
from ledgerbeam.io.datasets.webdataset.writer import MAX_BYTES, MAX_SAMPLES, ShardWriter
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import delete
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.urls import canonical_url, join_url
from ledgerbeam.io.tar.sample import Sample


class LitWriter:
    """Writes samples to the folds of a dataset. The dataset is complete when the body ends.

    Use it as a context manager. The configuration of an existing dataset in the folder is removed first, and the new
    one is written last: if `config.json` exists, the other files exist too. If the body raises, full shards stay, but
    without a configuration. Each shard also has a `.idx`, so the shards are a WebDataset too.

    Args:
        root: The folder: a path, or a URL of an object store.
        metadata: Metadata of the dataset, for the configuration; `num_<fold>` is added.
        encoders: For a modality, a function to bytes or the name of a codec. Default: the codec of its last part.
        max_samples: Largest number of samples of a shard.
        max_bytes: Size in bytes after which a shard takes no more samples.

    Raises:
        UsageError: A limit is below 1.
    """

    def __init__(
        self,
        root: str,
        options: Options | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        encoders: Mapping[str, str | Encoder] | None = None,
        max_samples: int = MAX_SAMPLES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.url = canonical_url(root)
        if max_samples < 1 or max_bytes < 1:
            raise UsageError(f"{self.url}: expected limits of at least 1, found {max_samples=} and {max_bytes=}")
        self._options = options
        self._metadata = dict(metadata or {})
        self._overrides = {name.removeprefix("."): encoder for name, encoder in (encoders or {}).items()}
        self._encoders: dict[str, Encoder] = {}
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._folds: dict[str, _Fold] = {}

    def __enter__(self) -> Self:
        delete(join_url(self.url, CONFIG), self._options)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for fold in self._folds.values():
            fold.shards.__exit__(kind, error, trace)
        if error is None:
            self._publish()

    def write(self, sample: Mapping[str, Any], fold: str | None = None) -> None:
        """Write a sample.

        Args:
            sample: Its key under `__key__`, its fold under `__fold__` (default `train`), and values by modality. Bytes
                are written unchanged; other values go through the codec of the modality.
            fold: The fold, instead of `__fold__`.

        Raises:
            RecordError: The sample has no key or a key that the shard already has, a value cannot be encoded, or
                readers would group the sample differently. Nothing of the sample was written; the writer can be used.
            UsageError: A modality has no codec, or the fold has an invalid name.
        """
        if not isinstance(key := sample.get("__key__"), str):
            raise RecordError(f"{self.url}: expected the key of a sample under '__key__', found {key!r:.80}")
        try:
            ("".join(map(str, sample)) + key).encode()
        except UnicodeEncodeError:
            raise RecordError(f"{self.url}: sample {key!r}: a name is not UTF-8, so the index cannot hold it") from None
        name = fold if fold is not None else sample.get("__fold__", "train")
        values = {
            modality.removeprefix("."): value
            for modality, value in sample.items()
            if modality not in ("__key__", "__fold__")
        }
        encoded = Sample(key, {modality: self._encode(key, modality, value) for modality, value in values.items()})
        self._fold(name).add(encoded)

    def _encode(self, key: str, modality: str, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if (encoder := self._encoders.get(modality)) is None:
            encoder = encoder_of(modality, self._overrides.get(modality), self.url)
            self._encoders[modality] = encoder
        try:
            return encoder(value)
        except LedgerbeamError:
            raise
        except Exception as error:  # an encoder may raise any error on a foreign value
            raise RecordError(f"{self.url}: sample {key!r}: {modality!r} cannot be encoded: {error!r:.300}") from error

    def _fold(self, name: Any) -> _Fold:
        if name not in self._folds:
            require_fold(self.url, name)
            pattern = f"{join_url(self.url, name)}_%04d.tar"
            self._folds[name] = _Fold(
                ShardWriter(pattern, self._options, max_samples=self._max_samples, max_bytes=self._max_bytes)
            )
        return self._folds[name]

    def _publish(self) -> None:
        modalities: dict[str, None] = {}
        config: dict[str, Any] = {}
        for name, fold in self._folds.items():
            if not fold.shards.shards:  # all of its samples were refused
                continue
            publish_bytes(join_url(self.url, index_name(name)), fold.index(), self._options)
            modalities |= fold.modalities
            config[name] = f"/{name}_{{0000..{len(fold.shards.shards) - 1:04d}}}.tar"
            self._metadata[f"num_{name}"] = sum(shard.records for shard in fold.shards.shards)
        config |= {"extensions": list(modalities), "metadata": self._metadata}
        publish_bytes(join_url(self.url, CONFIG), orjson.dumps(config), self._options)


class _Fold:
    """The shards of a fold, and its index so far: full shards as JSON, the current shard as a mapping."""

    def __init__(self, shards: ShardWriter) -> None:
        self.shards = shards
        self.modalities: dict[str, None] = {}
        self._done: list[bytes] = []
        self._name = ""
        self._members: Members = {}
        self._keys: set[str] = set()

    def add(self, sample: Sample) -> None:
        if self.shards.is_full:
            self._finish()
        if sample.key in self._keys:
            raise RecordError(
                f"{self.shards.root}/{self._name}: the shard has a sample {sample.key!r} already; use another key"
            )
        self._name, offsets = self.shards.place(sample)
        self._keys.add(sample.key)
        for modality, offset in zip(sample, offsets, strict=True):
            self._members.setdefault(f".{modality}", {})[sample.key] = offset
            self.modalities[modality] = None

    def index(self) -> bytes:
        self._finish()
        return b"{" + b",".join(self._done) + b"}"

    def _finish(self) -> None:
        if self._members:
            self._done.append(orjson.dumps({self._name: self._members})[1:-1])
        self._members, self._keys = {}, set()
