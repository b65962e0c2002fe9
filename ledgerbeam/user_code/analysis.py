"""Analysis of code without running it: hashes and names from compiled code, imported modules from sources.

Compiled code exists for every function, also in a notebook or at a prompt. Comments, line numbers and names of files do
not change its hash. Another minor version of Python compiles to other code.

Imports are also found in functions. A name that is known only at run time stands for all names that it can be:
``import_module(f"rules.{name}")`` stands for every module of the package ``rules``.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType
from typing import Any

_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def code_digest(code: CodeType) -> str:
    """Return a hash of the behaviour of code, the same in every process."""
    digest = blake2b(digest_size=8)
    for part in _parts(code):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def global_names(code: CodeType) -> list[str]:
    """Return the globals that code, and the functions in it, look up, in the order of their first use."""
    found = {step.argval: None for step in _steps(code) if step.opname in _GLOBALS}
    return list(found)


def attribute_names(code: CodeType) -> set[str]:
    """Return the names of attributes and globals that code, and the functions in it, use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(attribute_names, inner))


def imported_names(code: CodeType) -> list[str]:
    """Return the names that code imports when it runs, including names that are not modules."""
    found: dict[str, None] = {}
    module = ""
    for step in _steps(code):
        if step.opname == "IMPORT_NAME":
            module = step.argval
            found[module] = None
        elif step.opname == "IMPORT_FROM" and module:
            found[f"{module}.{step.argval}"] = None
    return list(found)


def listing(code: CodeType) -> Iterator[str]:
    """Yield the names, constants and operators that code uses, in their order."""
    for step in _steps(code):
        if step.argrepr and not isinstance(step.argval, CodeType) and not step.argrepr.startswith("to "):
            yield f"{step.opname.lower()} {step.argrepr}"


def _steps(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _steps(constant)


def _parts(code: CodeType) -> Iterator[bytes]:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield repr((counts, names)).encode("utf-8", "backslashreplace")
    yield code.co_code  # without the interpreter's specialisations
    yield code.co_exceptiontable
    for constant in code.co_consts:
        yield _constant(constant)


def _constant(value: Any) -> bytes:
    if isinstance(value, CodeType):
        return f"code {code_digest(value)}".encode()
    if isinstance(value, tuple):
        return b"(" + b",".join(map(_constant, value)) + b")"
    if isinstance(value, frozenset):  # its order differs between processes
        return b"{" + b",".join(sorted(map(_constant, value))) + b"}"
    return f"{type(value).__name__} {value!r}".encode("utf-8", "backslashreplace")


EVERY = "*"  # last part of a name that stands for every module of a package, as in ``rules.*``
STAR = "**"  # last part of a name that stands for what ``from package import *`` imports

_IMPORTS = ("import_module", "__import__")
_LISTINGS = ("iter_modules", "walk_packages")
_HERE = ("__name__", "__package__", "__path__")


def imported_modules(source: bytes, package: str, *, is_package: bool) -> Iterator[str]:
    """Yield the full names that a source may import, including names that are not modules.

    The module is in the package, or is the package. The last part of a name may be `EVERY` or `STAR`. Raises
    SyntaxError, ValueError or RecursionError if the source is not Python.
    """
    tree = ast.parse(source)
    is_open = False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                yield from _imported_from(_absolute("." * level + (module or ""), package), aliases)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                called = getattr(function, "attr", None) or getattr(function, "id", None)
                given = {word.arg: word.value for word in keywords}
                arguments = [*arguments, *(given[name] for name in ("name", "package") if name in given)]
                if called in _IMPORTS and arguments:
                    name = _named(arguments, package)
                    is_open = is_open or name is None
                    yield from filter(None, [name])
                elif called in _LISTINGS:
                    yield f"{package}.{EVERY}"
            case ast.FunctionDef(name="__getattr__") if is_package and node in tree.body:
                yield f"{package}.{EVERY}"
            case ast.Name(id="__getattr__", ctx=ast.Store()) if is_package:
                yield f"{package}.{EVERY}"
    if is_open:  # the name of an import is unknown: it may be one of the texts of the source
        yield from _texts(tree, package)


def exported_names(source: bytes) -> list[str] | None:
    """Return the names in ``__all__`` of a source; None if they are known only at run time.

    The list is empty for a source without ``__all__``, and for a source that is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: list[str] = []
    mentions = sum(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names = _literal(value)
            case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
                names = _literal(value)
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                names = _literal(value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="__all__"), attr="extend"), args=[value]):
                names = _literal(value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="__all__"), attr="append"), args=[value]):
                names = _literal(ast.List([value]))
            case _:
                continue
        if names is None:
            return None
        mentions -= 1
        found += names
    return None if mentions else found


def _imported_from(source: str, aliases: list[ast.alias]) -> Iterator[str]:
    if source:
        yield source
        yield from (f"{source}.{STAR if alias.name == '*' else alias.name}" for alias in aliases)


def _absolute(name: str, package: str) -> str:
    """Return the full name of a module that may be named relative to a package."""
    plain = name.lstrip(".")
    level = len(name) - len(plain)
    if not level:
        return name
    above = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*above, *([plain] if plain else [])])


def _named(arguments: list[ast.expr], package: str) -> str | None:
    """Return the import of a call: a name, every module of a package, or None if nothing is known of it."""
    start, is_whole = _start(arguments[0], package)
    if len(arguments) > 1 and start.startswith("."):
        above, is_known = _start(arguments[1], package)
        package = above if is_known else package
    if is_whole:
        return _absolute(start, package)
    known = start[: start.rfind(".") + 1]
    above = known if not known.strip(".") else known.removesuffix(".")
    return f"{_absolute(above, package)}.{EVERY}" if known else None


def _start(node: ast.expr, package: str) -> tuple[str, bool]:
    """Return the known beginning of a text, and whether this is the whole text."""
    match node:
        case ast.Constant(value=str(text)):
            return text, True
        case ast.Name(id=name) if name in _HERE:
            return package, True
        case ast.JoinedStr(values=values):
            return _joined(values, package)
        case ast.FormattedValue(value=value, format_spec=None):
            return _start(value, package)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined([left, right], package)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return text.partition("%")[0], False
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return text.partition("{")[0], False
    return "", False


def _joined(parts: list[ast.expr], package: str) -> tuple[str, bool]:
    text = ""
    for part in parts:
        start, is_whole = _start(part, package)
        text += start
        if not is_whole:
            return text, False
    return text, True


def _literal(node: ast.expr) -> list[str] | None:
    """Return the texts of a literal list; None for another expression."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            return texts if len(texts) == len(parts) else None
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _literal(left), _literal(right)
            return None if one is None or other is None else one + other
    return None


def _texts(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the texts of a source that may name modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            plain = node.value.lstrip(".")
            if plain and all(part.isidentifier() for part in plain.split(".")):
                yield _absolute(node.value, package)
                if package:
                    yield f"{package}.{plain}"
