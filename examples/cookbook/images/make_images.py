"""Write `shards/part-000.tar` and `part-001.tar`: photos with captions, and some that a training cannot use."""

from __future__ import annotations

import io
import os
import random

from PIL import Image

from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.webdataset import ShardWriter


def picture(draw: random.Random, width: int, height: int) -> Image.Image:
    """Return a smooth picture: a few random colors, enlarged."""
    small = Image.frombytes("RGB", (8, 6), draw.randbytes(8 * 6 * 3))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **({"compress_level": 1} if kind == "png" else {}))
    return file.getvalue()


def main() -> None:
    os.makedirs("shards", exist_ok=True)
    draw = random.Random(47)
    with ShardWriter("shards/part-%03d.tar", max_samples=200) as writer:
        for number in range(400):
            width, height = draw.choice([(1280, 960), (960, 1280), (1280, 800)])
            if number % 40 == 7:
                width, height = 96, 64
            elif number % 40 == 17:
                width, height = 1600, 200  # a banner
            kind = "png" if number % 10 == 0 else "jpeg"
            data = encoded(picture(draw, width, height), kind)
            if number % 100 == 33:
                data = data[: len(data) // 2]  # a download that was cut off
            caption = f"picture {number}"
            writer.write(Sample(f"{number:06}", {kind.replace("jpeg", "jpg"): data, "txt": caption.encode()}))


if __name__ == "__main__":
    main()
