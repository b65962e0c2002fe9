"""Write `messages/a.jsonl` and `messages/b.jsonl`: messages with e-mail addresses, phone numbers and card numbers."""

from __future__ import annotations

import json
import os
import random

TEMPLATES = [
    "Write to {name}@example.org or call {phone}.",
    "Order {order}: paid with card {card}, delivered to {name}.",
    "Login of {name} from {ip} failed; release 10.4.2.1 of the router is old.",
    "The meeting of {name} is at 10:30 in room 4711, on 2026-11-30.",
    "Serial number 4111 1111 1111 1112 is no card number.",
]
PHONES = ["+49 30 901820", "+1 212-555-2368", "(0)30 90182-0", "030 901820", "+81 3-3211-1111"]
CARDS = ["4111 1111 1111 1111", "5500-0055-5555-5559", "340000000000009"]
ADDRESSES = ["192.0.2.17", "2001:db8::17", "198.51.100.4:8080"]
NAMES = ["ada.lovelace", "grace_hopper", "alan+turing", "emmy-noether"]


def main() -> None:
    os.makedirs("messages", exist_ok=True)
    draw = random.Random(47)
    for name in "ab":
        with open(f"messages/{name}.jsonl", "w", encoding="utf-8") as file:
            for number in range(10_000):
                values = {"name": draw.choice(NAMES), "phone": draw.choice(PHONES), "ip": draw.choice(ADDRESSES)}
                values |= {"card": draw.choice(CARDS), "order": str(draw.randint(10**7, 10**8))}
                text = " ".join(draw.sample(TEMPLATES, k=draw.randint(1, 3))).format(**values)
                print(json.dumps({"id": f"{name}{number}", "text": text}), file=file)


if __name__ == "__main__":
    main()
