"""Write `crawl/a.warc.gz` and `crawl/b.warc.gz`: pages in English, images, and a page that takes minutes."""

from __future__ import annotations

import gzip
import os
import random

from ledgerbeam.io.warc import record_bytes

SUBJECTS = ["The miller", "Our neighbour", "A young engineer", "The town council", "My grandmother", "The last ferry"]
VERBS = ["repaired", "described", "measured", "sold", "painted", "forgot"]
OBJECTS = ["the old bridge", "a wooden boat", "the clock of the station", "three maps of the coast", "her first radio"]
TIMES = ["before the winter", "in a single night", "after the flood", "with great care", "for the museum"]

PAGE = """<!DOCTYPE html><html lang="en"><head><title>{title}</title></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/news">News</a></li><li><a href="/about">About us</a></li></ul></nav>
<article><h1>{title}</h1>{body}</article><footer>Copyright, privacy, imprint</footer></body></html>"""


def sentence(draw: random.Random) -> str:
    return " ".join(map(draw.choice, (SUBJECTS, VERBS, OBJECTS, TIMES))) + f", {draw.randint(2, 99)} years ago."


def page(draw: random.Random, number: int) -> str:
    """Return an article; each tenth page has one sentence, and each twentieth is a copy of page 0."""
    if number % 20 == 0:
        draw = random.Random(0)
    count = 1 if number % 10 == 5 else draw.randint(10, 60)
    paragraphs = "".join(f"<p>{' '.join(sentence(draw) for _ in range(4))}</p>" for _ in range(count))
    return PAGE.format(title=sentence(draw), body=paragraphs if count > 1 else "<p>Page not found.</p>")


def response(url: str, mime: str, payload: bytes) -> bytes:
    """Return a record of WARC as a gzip member, as crawlers write it."""
    headers = {"WARC-Type": "response", "WARC-Target-URI": url, "WARC-Date": "2026-11-01T00:00:00Z"}
    http = {"line": "HTTP/1.1 200 OK", "headers": {"Content-Type": mime}}
    headers |= {"WARC-Record-ID": f"<urn:{url}>", "Content-Type": "application/http; msgtype=response"}
    return gzip.compress(record_bytes({"headers": headers, "http": http, "payload": payload}), mtime=0)


def main() -> None:
    os.makedirs("crawl", exist_ok=True)
    draw = random.Random(47)
    slow = PAGE.format(title="Slow", body="<p>" + "word <b>x</b> " * 24_000 + "</p>")  # trafilatura: quadratic time
    for name in "ab":
        with open(f"crawl/{name}.warc.gz", "wb") as file:
            for number in range(600):
                url = f"http://example.org/{name}/{number}"
                file.write(response(url, "text/html; charset=utf-8", page(draw, number).encode()))
                if number % 4 == 0:
                    file.write(response(f"{url}.png", "image/png", b"\x89PNG"))
            if name == "b":
                file.write(response("http://example.org/slow", "text/html; charset=utf-8", slow.encode()))


if __name__ == "__main__":
    main()
