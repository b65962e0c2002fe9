"""WARC: the archives of web crawls."""

from __future__ import annotations

from ledgerbeam.io.warc.encodings import decoded_payload as decoded_payload
from ledgerbeam.io.warc.format import WarcFormat as WarcFormat
from ledgerbeam.io.warc.records import record_bytes as record_bytes

__all__ = ["WarcFormat", "decoded_payload", "record_bytes"]
