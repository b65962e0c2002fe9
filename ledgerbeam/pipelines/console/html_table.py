"""Facts as an HTML table for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable

from ledgerbeam._base.redaction import printable, without_secrets

MOST_SHOWN = 500
"""Maximum number of characters of a value."""


def html_table(caption: str, rows: Iterable[tuple[str, str | None]]) -> str:
    """Return facts as an HTML table, escaped and without secrets.

    Args:
        caption: Caption of the table.
        rows: Name and value of each fact; a fact without a value is left out.
    """
    cells = "".join(f"<tr>{_cell('th', name)}{_cell('td', value)}</tr>" for name, value in rows if value)
    return f"<table><caption>{_shown(caption)}</caption>{cells}</table>"


def _cell(tag: str, text: str) -> str:
    return f"<{tag} style='text-align:left'>{_shown(text)}</{tag}>"


def _shown(text: str) -> str:
    plain = printable(without_secrets(text))
    return html.escape(plain if len(plain) <= MOST_SHOWN else f"{plain[:MOST_SHOWN]} ...")
