# masking.py
import ipaddress
import re

import phonenumbers

from ledgerbeam import stats

EMAIL = re.compile(r"\b[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
DIGITS = re.compile(r"(?<![\w.-])(?:\d[ -]?){12,}\d(?!\w)")
ADDRESS = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w.]?\w)")


def mask(record, region="US"):
    text, _ = EMAIL.subn("<EMAIL>", record["text"])
    text = DIGITS.sub(lambda match: mask_card(match[0]), text)
    text = ADDRESS.sub(lambda match: "<IP>" if is_address(match[0]) else match[0], text)
    for match in reversed(list(phonenumbers.PhoneNumberMatcher(text, region))):
        text = text[: match.start] + "<PHONE>" + text[match.end :]
    for kind in ("<EMAIL>", "<CARD>", "<IP>", "<PHONE>"):
        if count := text.count(kind) - record["text"].count(kind):
            stats.count(kind[1:-1].lower(), count)
    return {**record, "text": text}


def mask_card(text):
    """Mask the longest card number at the start; groups of other digits may follow, such as the date of expiry."""
    for end in range(len(text), 12, -1):
        if text[end - 1].isdigit() and not text[end : end + 1].isdigit() and is_card(text[:end]):
            return "<CARD>" + text[end:]
    return text


def is_card(text):
    """Check the length and the last digit (Luhn)."""
    digits = [int(digit) for digit in text if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and any(digits) and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_address(text):
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
