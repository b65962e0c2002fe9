"""Documents of real English text, with the faults that filters look for, and pages of HTML."""

from __future__ import annotations

import importlib
import inspect
import random
from html import escape
from typing import Any

MODULES = ("argparse", "asyncio.queues", "collections", "csv", "datetime", "decimal", "difflib", "email.message",
           "fractions", "functools", "heapq", "http.client", "inspect", "ipaddress", "json", "logging", "mailbox",
           "multiprocessing.pool", "optparse", "pathlib", "pickle", "queue", "random", "re", "shutil", "sqlite3",
           "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "turtle", "typing",
           "unittest.case", "unittest.mock", "urllib.parse", "uuid", "zipfile")  # fmt: skip
"""Modules of Python whose docstrings are the texts."""

FAULTS = (
    lambda text: text,
    lambda text: text,
    lambda text: "\n".join(f"- {line}" for line in text.splitlines()),
    lambda text: "\n".join(f"{line}..." for line in text.splitlines()),
    lambda text: "\n\n".join([text] * 4),
    lambda text: text[:80],
    lambda text: f"{text}\nWrite to jane.doe@example.net or bob@mail.test, at 8.8.8.8 or 1.1.1.1, and to eve@web.de.",
    lambda text: (
        text.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}").encode().decode("cp1252", "replace") + " &lt;b&gt;"
    ),
    lambda text: f"{text}\n----------\n**********\nThe last line.\n",
    lambda text: f"{text}\nLorem ipsum dolor sit amet.",
    lambda text: text.replace("(", "{").replace(")", "}"),
    lambda text: " ".join(["#"] * 20) + text,
    lambda text: "".join(f"{word} " * 3 for word in text.split()),
)


def texts() -> list[str]:
    """Return docstrings of Python's library. Each of their paragraphs becomes one line."""
    found: dict[str, None] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for member in [module, *vars(module).values()]:
            text = inspect.getdoc(member) if inspect.ismodule(member) or inspect.isclass(member) else None
            if text and len(text) > 100 and str(getattr(member, "__module__", name)).startswith(name):
                found["\n".join(" ".join(part.split()) for part in text.split("\n\n"))] = None
    return list(found)


def documents(count: int) -> list[dict[str, Any]]:
    """Return documents with an ID, a URL and metadata."""
    draw, known = random.Random(7), texts()
    made = []
    for number in range(count):
        fault = FAULTS[number % len(FAULTS)]
        text = fault("\n".join(draw.choices(known, k=draw.randint(1, 4))))
        place = draw.choice(["docs/page", "blog/post", "free-porn-xxx/video", "casino/poker", "news"])
        url = f"https://www.site{number % 40}.com/{place}/{number}"
        made.append({"text": text, "id": f"doc-{number}", "url": url, "score": number / 7, "tags": ["a", number]})
    return made


def pages(count: int) -> list[dict[str, Any]]:
    """Return pages of HTML. Many have a paragraph in common, and some have no text."""
    draw, known = random.Random(11), texts()
    shared = "This site uses the standard library to explain how programs are written, tested and shipped to users."
    made = []
    for number in range(count):
        body = "".join(f"<p>{escape(text)}</p>" for text in draw.choices(known, k=draw.randint(1, 5)))
        html = (
            f"<html><head><title>Page {number}</title></head><body><nav><a href='/'>Home</a> <a href='/a'>About</a>"
            f"</nav><article><h1>Page {number}</h1>{body}<p>{shared}</p></article><footer>Contact us</footer></body>"
            "</html>"
        )
        made.append({"text": "<html></html>" if number % 17 == 3 else html, "id": f"page-{number}", "url": "a.org"})
    return made
