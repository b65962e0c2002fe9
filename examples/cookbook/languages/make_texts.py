"""Write `texts/a.jsonl` and `texts/b.jsonl`: texts in seven languages, and strings of no language."""

from __future__ import annotations

import json
import os
import random

SENTENCES = {
    "de": [
        "Der Zug nach Ulm fährt heute später ab.",
        "Wir haben das alte Haus am Fluss gekauft.",
        "Im Winter liegt hier oft Schnee.",
    ],
    "en": [
        "The train to Leeds leaves later today.",
        "We have bought the old house by the river.",
        "In winter there is often snow here.",
    ],
    "es": [
        "El tren a Toledo sale hoy más tarde.",
        "Hemos comprado la vieja casa junto al río.",
        "En invierno hay nieve aquí a menudo.",
    ],
    "fr": [
        "Le train pour Lille part plus tard aujourd'hui.",
        "Nous avons acheté la vieille maison au bord du fleuve.",
        "En hiver, il y a souvent de la neige ici.",
    ],
    "it": [
        "Il treno per Siena parte più tardi oggi.",
        "Abbiamo comprato la vecchia casa vicino al fiume.",
        "D'inverno qui c'è spesso la neve.",
    ],
    "pl": ["Pociąg do Gdyni odjeżdża dziś później.", "Kupiliśmy stary dom nad rzeką.", "Zimą często leży tu śnieg."],
    "ja": [
        "長野行きの電車は今日は遅れて出発します。",
        "私たちは川のそばの古い家を買いました。",
        "冬にはここによく雪が降ります。",
    ],
}


def main() -> None:
    os.makedirs("texts", exist_ok=True)
    draw = random.Random(47)
    for name in "ab":
        with open(f"texts/{name}.jsonl", "w", encoding="utf-8") as file:
            for number in range(16_000):
                text = " ".join(draw.choices(SENTENCES[draw.choice(sorted(SENTENCES))], k=draw.randint(1, 5)))
                if number % 50 == 3:
                    text = "-- 4711 / 0815 --"
                print(json.dumps({"id": f"{name}{number}", "text": text}, ensure_ascii=False), file=file)


if __name__ == "__main__":
    main()
