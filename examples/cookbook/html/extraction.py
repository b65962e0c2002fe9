# extraction.py
from trafilatura import extract

from ledgerbeam import Drop
from ledgerbeam.io.warc import decoded_payload


def text_of(record, shortest=200):
    if record["type"] != "response" or record["mime"] not in ("text/html", "application/xhtml+xml"):
        return Drop("no page")
    text = extract(decoded_payload(record), url=record["url"], favor_precision=True, include_comments=False)
    if not text or len(text) < shortest:
        return Drop("little text")
    return {"url": record["url"], "date": record["date"], "text": text}
