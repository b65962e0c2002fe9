"""Write `crawl/a.warc.gz` and `crawl/b.warc.gz`: articles, and pages that each filter of the recipe drops."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable

from ledgerbeam.io.warc import record_bytes

ADJECTIVES = (
    "old young quiet narrow bright heavy distant careful wooden modern famous broken gentle northern public empty "
    "golden patient serious private local early simple strange warm foreign annual hollow proud useful"
).split()
NOUNS = (
    "bridge teacher river market garden engine letter island village machine winter library farmer station picture "
    "harbor window doctor forest museum kitchen journey captain factory mountain theater summer castle neighbor boat "
    "blanket office road painter council orchard signal valley tower baker"
).split()
VERBS = (
    "described repaired visited followed measured opened painted crossed explained carried noticed remembered sold "
    "improved watched finished defended borrowed collected questioned"
).split()
PLACES = "near behind above beside against without under beyond".split()
ENDS = ["and the", "with its", "before that", "of another", "because of a"]
GERMAN = (
    "Der Zug nach Ulm fährt heute später ab. Wir haben das alte Haus am Fluss gekauft. Im Winter liegt hier Schnee."
)


def sentence(draw: random.Random) -> str:
    def thing() -> str:
        return f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}"

    start, place, end = draw.choice(("The", "A", "This", "Every")), draw.choice(PLACES), draw.choice(ENDS)
    return f"{start} {thing()} {draw.choice(VERBS)} the {thing()} {place} the {thing()} {end} {draw.choice(NOUNS)}."


def paragraph(draw: random.Random) -> str:
    return " ".join(sentence(draw) for _ in range(draw.randint(3, 6)))


def article(draw: random.Random) -> list[str]:
    return [paragraph(draw) for _ in range(draw.randint(4, 6))]


def copy(draw: random.Random) -> list[str]:
    """Return one article with another last sentence."""
    return [*article(random.Random(0)), sentence(draw)]


def short(draw: random.Random) -> list[str]:
    return [sentence(draw), sentence(draw)]


def german(draw: random.Random) -> list[str]:
    return [f"{GERMAN} Nummer {draw.randint(1, 99)}." for _ in range(6)]


def repeated(draw: random.Random) -> list[str]:
    words = sentence(draw).lower().rstrip(".")
    return [f"{words} {words} {words} {words} {words} number {number}." for number in range(8)]


def lorem(draw: random.Random) -> list[str]:
    return [*article(draw), "Here lorem ipsum stands for the text that is not written yet."]


def notes(draw: random.Random) -> list[str]:
    """Return lines without punctuation at their ends."""
    return [sentence(draw).rstrip(".") for _ in range(40)]


KINDS: list[Callable[[random.Random], list[str]]] = [article] * 8 + [copy, short, german, repeated, lorem, notes]

PAGE = """<!DOCTYPE html><html><head><title>{title}</title></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/news">News</a></li></ul></nav>
<article><h1>{title}</h1>{body}</article><footer>Copyright, privacy, imprint</footer></body></html>"""


def response(url: str, mime: str, payload: bytes) -> bytes:
    """Return a record of WARC as a gzip member, as crawlers write it."""
    headers = {"WARC-Type": "response", "WARC-Target-URI": url, "WARC-Date": "2026-11-01T00:00:00Z"}
    headers |= {"WARC-Record-ID": f"<urn:{url}>", "Content-Type": "application/http; msgtype=response"}
    http = {"line": "HTTP/1.1 200 OK", "headers": {"Content-Type": mime}}
    return gzip.compress(record_bytes({"headers": headers, "http": http, "payload": payload}), mtime=0)


def main() -> None:
    os.makedirs("crawl", exist_ok=True)
    draw = random.Random(47)
    for name in "ab":
        with open(f"crawl/{name}.warc.gz", "wb") as file:
            for number in range(160):
                kind = draw.choice(KINDS)
                body = "".join(f"<p>{text}</p>" for text in kind(draw))
                host = "ads" if number % 40 == 11 else name
                url = f"http://{host}.example.org/{kind.__name__}/{number}"
                page = PAGE.format(title=sentence(draw), body=body)
                file.write(response(url, "text/html; charset=utf-8", page.encode()))
                if number % 4 == 0:
                    file.write(response(f"{url}.png", "image/png", b"\x89PNG"))


if __name__ == "__main__":
    main()
