# resizing.py
import io
import json

from PIL import Image, ImageOps

from ledgerbeam import Drop, Reject

KINDS = ("jpg", "jpeg", "png", "webp")


def resize(sample, side=256, shortest=128, ratio=4.0, most_pixels=50_000_000):
    data = next((sample[kind] for kind in KINDS if kind in sample), None)
    if data is None:
        return Drop("no image")
    with Image.open(io.BytesIO(data)) as opened:  # reads only the header
        width, height = opened.size
        if width * height > most_pixels:
            return Reject("too many pixels", f"{width} x {height}")
        if min(width, height) < shortest:
            return Drop("too small")
        if max(width, height) > ratio * min(width, height):
            return Drop("too long")
        image = ImageOps.exif_transpose(opened).convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    facts = {"width": image.width, "height": image.height, "original": [width, height]}
    return {"jpg": file.getvalue(), "txt": sample["txt"], "json": json.dumps(facts)}
