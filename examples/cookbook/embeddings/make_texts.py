"""Write `texts/a.parquet` and `texts/b.parquet`: short texts about a few subjects, some of them empty."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq

SUBJECTS = {
    "boats": [
        "The ferry crossed the bay at noon.",
        "Two sailors repaired the mast.",
        "The harbor was full of small boats.",
    ],
    "bread": ["The baker kneads the dough for ten minutes.", "Rye bread needs a sour starter.", "The oven is hot now."],
    "trains": [
        "The night train stops in Ulm.",
        "A signal failed near the tunnel.",
        "Tickets are sold on the platform.",
    ],
}


def main() -> None:
    os.makedirs("texts", exist_ok=True)
    draw = random.Random(47)
    for name in "ab":
        rows = []
        for number in range(8_000):
            subject = draw.choice(sorted(SUBJECTS))
            text = " ".join(draw.choices(SUBJECTS[subject], k=draw.randint(1, 8))) if number % 100 else " "
            rows.append({"id": f"{name}{number}", "subject": subject, "text": text})
        pq.write_table(pa.Table.from_pylist(rows), f"texts/{name}.parquet")


if __name__ == "__main__":
    main()
