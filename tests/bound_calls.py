"""Blocks of Python that cannot run here: their imports of the library, and the arguments of its calls, are checked."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator

__all__ = ["faults"]

_LIBRARY = "ledgerbeam"


def faults(block: str) -> list[str]:
    """Return what is wrong with a block: a name that the library lacks, or a call that its signature refuses.

    Raises:
        SyntaxError: It is not Python.
    """
    tree = ast.parse(block)
    names: dict[str, object] = {}
    found = []
    for node in ast.walk(tree):
        for bound_as, path in _imports(node):
            try:
                names[bound_as] = _resolve(path)
            except (ImportError, AttributeError) as error:
                found.append(f"{path}: {error}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = _called(node.func, names)
            if called is not None:
                found += _unbound(node, called)
    return found


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that a statement binds, and the path of each in the library."""
    if isinstance(node, ast.Import):
        for name in node.names:
            if name.name.split(".")[0] == _LIBRARY:
                yield (name.asname, name.name) if name.asname else (_LIBRARY, _LIBRARY)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == _LIBRARY:
        for name in node.names:
            yield name.asname or name.name, f"{node.module}.{name.name}"


def _resolve(path: str) -> object:
    parent, _, name = path.rpartition(".")
    if not parent:
        return importlib.import_module(path)
    module = importlib.import_module(parent)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(path)


def _called(node: ast.expr, names: dict[str, object]) -> object | None:
    """Return what an expression names in the library, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _called(node.value, names)
        return getattr(owner, node.attr, None) if inspect.ismodule(owner) else None
    return None


def _unbound(call: ast.Call, called: object) -> list[str]:
    if any(isinstance(value, ast.Starred) for value in call.args) or any(word.arg is None for word in call.keywords):
        return []
    assert callable(called), f"{ast.unparse(call)}: no function"
    words = {word.arg: word for word in call.keywords if word.arg is not None}
    try:
        inspect.signature(called).bind(*call.args, **words)
    except TypeError as error:
        return [f"{ast.unparse(call)}: {error}"]
    return []
