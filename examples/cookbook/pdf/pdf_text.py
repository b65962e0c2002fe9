# pdf_text.py
import io
import logging

from pypdf import PdfReader

from ledgerbeam import Drop

logging.getLogger("pypdf").setLevel(logging.ERROR)  # rejected files are stored with their errors


def text_of(sample):
    pages = [page.extract_text().strip() for page in PdfReader(io.BytesIO(sample["pdf"])).pages]
    text = "\n\n".join(pages).strip()
    if not text:
        return Drop("no text")  # a scan: it needs OCR
    return {"name": sample.key, "pages": len(pages), "text": text}
