"""Functions of one record, for `ledgerbeam map cleaning:NAME`.

A function returns a record, None to drop it, or a list of records. It must be pure: the same record always gives the
same result, so that a job that was killed ends with the bytes of one that was not.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from typing import Any


def squeeze_spaces(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "text": " ".join(record["text"].split())}


def drop_short(record: dict[str, Any]) -> dict[str, Any] | None:
    return record if len(record["text"]) >= 200 else None


def documented_functions(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Make one record of each documented function of a Python source.

    Args:
        record: A JSONL record with a `text`, or a tar sample with a member `py`.

    Returns:
        Records of `name`, `doc` and `code`, in the order of the source; none if it is not valid Python.
    """
    text = record["py"].decode() if "py" in record else record["text"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources hold escapes that Python warns of
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
