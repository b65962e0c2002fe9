"""Images as Pillow reads and writes them; imported when the first one is met."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

from ledgerbeam.errors import UsageError

__all__ = ["decode_image", "encode_image", "image_format", "pillow"]


def pillow() -> ModuleType:
    """Import `PIL.Image`.

    Raises:
        UsageError: Pillow is not installed.
    """
    try:
        from PIL import Image  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise UsageError("images need Pillow: pip install 'ledgerbeam[image]'") from error
    return Image


def image_format(extension: str) -> str | None:
    """Return Pillow's name for the format of an extension such as `jpg`; None if it is of no image that it knows."""
    formats: dict[str, str] = pillow().registered_extensions()
    return formats.get(f".{extension.lower()}")


def decode_image(data: bytes) -> Any:
    """Decode an image.

    Returns:
        A `PIL.Image.Image`, its pixels loaded.
    """
    image = pillow().open(io.BytesIO(data))
    image.load()
    return image


def encode_image(image: Any, name: str) -> bytes:
    """Encode a `PIL.Image.Image` in the format of its file's name, or in the one that it was read from.

    Args:
        image: The image. Its own `format`, if it has one, decides: a JPEG stays one under any extension.
        name: Extension, such as `jpg`.

    Raises:
        ValueError: It is no image.
    """
    if not isinstance(image, pillow().Image):
        raise ValueError(f"expected a PIL image or encoded bytes, found {type(image).__name__}")
    target = io.BytesIO()
    image.save(target, format=image.format or image_format(name))
    return target.getvalue()
