"""What the code of a function does, as a hash, and which names it takes from elsewhere.

It is read from the compiled code, which every function has, also one of a notebook or a prompt. Comments, line numbers
and names of files mean nothing to it. Another minor version of Python compiles to other code.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType
from typing import Any

_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def code_digest(code: CodeType) -> str:
    """Return a hash of what code does, the same in every process."""
    digest = blake2b(digest_size=8)
    for part in _parts(code):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def global_names(code: CodeType) -> list[str]:
    """Return the names that code, and the functions in it, look up among the globals, in order of their first use."""
    found = {step.argval: None for step in _steps(code) if step.opname in _GLOBALS}
    return list(found)


def attribute_names(code: CodeType) -> set[str]:
    """Return the names of attributes and globals that code, and the functions in it, use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(attribute_names, inner))


def imported_names(code: CodeType) -> list[str]:
    """Return the names that code imports when it runs; those that are no modules are among them."""
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
    yield code.co_code  # without what the interpreter has specialised in it
    yield code.co_exceptiontable
    for constant in code.co_consts:
        yield _constant(constant)


def _constant(value: Any) -> bytes:
    if isinstance(value, CodeType):
        return f"code {code_digest(value)}".encode()
    if isinstance(value, tuple):
        return b"(" + b",".join(map(_constant, value)) + b")"
    if isinstance(value, frozenset):  # its order is another in each process
        return b"{" + b",".join(sorted(map(_constant, value))) + b"}"
    return f"{type(value).__name__} {value!r}".encode("utf-8", "backslashreplace")
