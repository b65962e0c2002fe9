"""Write the folder `pdfs`: reports of one to four pages, a scan without text, and files that are damaged."""

from __future__ import annotations

import os
import random

WORDS = "the committee of this town measured old bridges and new boats before winter with great care again".split()


def pdf(pages: list[list[str]]) -> bytes:
    """Return a PDF with one font and the given lines of each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        text = "BT /F1 11 Tf 14 TL 60 780 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
        page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"{page} /Contents {5 + 2 * number} 0 R >>".encode())
        objects.append(f"<< /Length {len(text)} >>\nstream\n{text}\nendstream".encode())
    data, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(f"{len(data):010d} 00000 n \n")
        data += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{''.join(places)}"
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + table.encode() + end.encode()


def main() -> None:
    os.makedirs("pdfs", exist_ok=True)
    draw = random.Random(47)
    for number in range(600):
        pages = [[" ".join(draw.choices(WORDS, k=14)) for _ in range(50)] for _ in range(draw.randint(1, 4))]
        if number == 100:
            pages = [[]]  # a scan has no text
        data = pdf(pages)
        if number == 150:
            data = data[:700]  # a download that was cut off
        elif number == 151:
            data = b"<html><body>404 Not Found</body></html>"
        with open(f"pdfs/report-{number:03}.pdf", "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
