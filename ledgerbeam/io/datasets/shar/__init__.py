"""lhotse's Shar: cuts (parts of recordings, described in JSON), and their payloads, such as audio and arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.datasets.shar.format import SharFormat
    from ledgerbeam.io.datasets.shar.payloads import Frames
    from ledgerbeam.io.datasets.shar.reader import SharReader
    from ledgerbeam.io.datasets.shar.writer import SharWriter

__all__ = ["Frames", "SharFormat", "SharReader", "SharWriter"]

if not TYPE_CHECKING:  # for a type checker, `__getattr__` would make every name valid
    __getattr__, __dir__ = lazy_names(
        __name__, {"format": "SharFormat", "payloads": "Frames", "reader": "SharReader", "writer": "SharWriter"}
    )
