"""Functions of one record, for `ledgerbeam map cleaning:NAME`.

A function returns a record, None to drop the record, or a list of records. It must be pure: the same record always
gives the same result. Then a killed and restarted job ends with the same bytes as an undisturbed job.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from typing import Any


def squeeze_spaces(record: dict[str, Any]) -> dict[str, Any]:
    """Replace each run of white space in the text by one space."""
    return {**record, "text": " ".join(record["text"].split())}


def drop_short(record: dict[str, Any]) -> dict[str, Any] | None:
    """Drop records whose text has less than 200 characters."""
    return record if len(record["text"]) >= 200 else None


def documented_functions(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Extract the documented functions of a Python source.

    Args:
        record: A JSONL record with a `text`, or a tar sample with a member `py`.

    Returns:
        A record with `name`, `doc` and `code` for each function with a docstring: outer functions before the functions
        in them. Invalid Python gives an empty list.
    """
    text = record["py"].decode() if "py" in record else record["text"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of invalid escapes in old sources
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    lines = text.split("\n")
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                found.append({"name": node.name, "doc": doc, "code": code})
    return found
