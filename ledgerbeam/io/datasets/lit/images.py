"""Images in the formats of Pillow, and label maps as PNG. Pillow is imported for the first image."""

from __future__ import annotations

import io
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError

MOST_LABELS = 4 * 1032
"""Largest number of labels of a byte of a PNG: deflate makes at most 1032 bytes from one, and a label has at least 2
bits."""

_MODES = {8: ("L",), 16: ("I;16", "I"), 24: ("RGB",), 32: ("RGBA",)}


def _pillow() -> ModuleType:
    """Import `PIL.Image`.

    Raises:
        UsageError: Pillow is not installed.
    """
    try:
        from PIL import Image  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise UsageError(f"images need Pillow: {install_command('image')}") from error
    return Image


def image_format(extension: str) -> str | None:
    """Return Pillow's name for the format of an extension such as `jpg`; None if Pillow does not know the extension."""
    formats: dict[str, str] = _pillow().registered_extensions()
    return formats.get(f".{extension.lower()}")


def decode_image(data: bytes) -> Any:
    """Decode an image.

    Returns:
        A `PIL.Image.Image` with loaded pixels.
    """
    image = _pillow().open(io.BytesIO(data))
    image.load()
    return image


def encode_image(image: Any, name: str) -> bytes:
    """Encode a `PIL.Image.Image` in the format of its file's name, or in its original format.

    Args:
        image: The image. Its own `format` takes precedence: a JPEG stays a JPEG under any extension.
        name: Extension, such as `jpg`.

    Raises:
        ValueError: The value is not an image.
    """
    if not isinstance(image, _pillow().Image):
        raise ValueError(f"expected a PIL image or encoded bytes, found {type(image).__name__}")
    target, kind = io.BytesIO(), image.format or image_format(name)
    undated = {"creationDate": None, "modDate": None} if kind == "PDF" else {}  # otherwise Pillow writes the time
    image.save(target, format=kind, **undated)
    return target.getvalue()


@dataclass(frozen=True, slots=True)
class Segmentation:
    """The codec of label maps: one channel of 8 or 16 bits, or the bytes of a 24- or 32-bit label in RGB or RGBA.

    The most significant byte is R. Source: `litdata/encoders.py` of the published package.

    Attributes:
        bits: Bits of a label: 8, 16, 24 or 32.
    """

    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the array: uint8, uint16, and uint32 for 24 and 32 bits."""
        return np.dtype(f"u{1 if self.bits == 8 else 2 if self.bits == 16 else 4}")

    def encode(self, array: NDArray[Any]) -> bytes:
        """Encode labels of shape (height, width).

        Raises:
            ValueError: The array has another dtype or shape, no labels, or a label that needs more bits.
        """
        array = np.asarray(array)
        if array.dtype != self.dtype or array.ndim != 2 or not array.size:
            raise ValueError(
                f"expected labels of shape (height, width) in {self.dtype}, found {array.dtype} of shape {array.shape}"
            )
        if self.bits == 24 and int(array.max()) >> 24:
            raise ValueError(f"expected labels below {2**24}, found {array.max()}; seg32 holds them")
        if self.bits > 16:
            channels = array.astype(">u4").view(np.uint8).reshape(*array.shape, 4)
            array = np.ascontiguousarray(channels[:, :, 1:] if self.bits == 24 else channels)
        target = io.BytesIO()
        _pillow().fromarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).save(target, format="PNG")
        return target.getvalue()

    def decode(self, data: bytes) -> NDArray[Any]:
        """Decode labels.

        Returns:
            Shape (height, width), in `dtype`.

        Raises:
            ValueError: The PNG has other channels, whose conversion would change labels, or claims more labels than its
                bytes can hold. Also the errors of Pillow on bytes that are not a PNG.
        """
        image = _pillow().open(io.BytesIO(data), formats=["PNG"])
        if image.mode not in _MODES[self.bits]:
            raise ValueError(f"expected a PNG of mode {_MODES[self.bits][0]}, found {image.mode}")
        if image.width * image.height > MOST_LABELS * len(data):
            raise ValueError(
                f"expected at most {MOST_LABELS * len(data):,} labels in {len(data):,} bytes, found a PNG of "
                f"{image.width} by {image.height}"
            )
        pixels = np.asarray(image)
        if self.bits <= 16:
            return pixels.astype(self.dtype)
        channels = np.zeros((*pixels.shape[:2], 4), np.uint8)
        channels[:, :, 4 - pixels.shape[2] :] = pixels
        return channels.view(">u4")[:, :, 0].astype(self.dtype)
