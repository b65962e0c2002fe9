"""Modules that belong to a job's identity: the user's own files that a function's module imports.

Imports are found in the sources, without running anything: an import in a function counts like one at the top. A name
that is known only at run time counts as all possible names: ``import_module(f"rules.{name}")`` counts as an import of
every module of the package ``rules``. Installed modules (the standard library, packages, ledgerbeam) are distinguished
from the user's own files by their folder.

A function of a notebook or a prompt has no module file. So its compiled code gives its hash and the names that it uses.
Comments, line numbers and names of files do not change the hash; another minor version of Python does.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import marshal
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER, find_spec
from pkgutil import iter_modules
from struct import pack
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.job import note_text
from ledgerbeam.user_code.loading import MAIN, import_object

MODULES = "module"  # name of the group in a job's parameters with the hashes of modules by name
NO_SOURCE = "no source"  # value in place of the hash for a module without a file, such as a built-in one

_SOURCES = (".py", ".pyw")
_HASH = re.compile(r"[0-9a-f]{16}")
_STAMPED = 16  # length of the header of a bytecode file: magic number, flags, time and size of the source, or a hash
_UNCHECKED = pack("<I", 1)  # flags of bytecode that Python runs without checking the source
_PACKAGES = {"site-packages", "dist-packages"}  # names of folders of installed packages, also of another Python


def user_modules(reference: str) -> dict[str, str]:
    """Return the modules of an object's identity, each with a hash of its file.

    These are the module that the reference names, the modules that define the object and its class, and all of the
    user's own files that these modules import, directly or indirectly. An installed module is included only if the
    reference names it, or if it defines the object.
    """
    named = reference.partition(":")[0]
    return {name: known for name, known in modules_of(_roots(reference)).items() if known != NO_SOURCE or name == named}


def modules_of(names: Iterable[str]) -> dict[str, str]:
    """Return modules and the user's own modules that they import, directly or indirectly, each with a hash of its file.

    The user's own packages that contain the modules are added. Raises FunctionError if Python would run a module's
    outdated bytecode.
    """
    roots = {*names}
    roots |= {held for name in roots for held in {*_held(name)} if is_own(held)}
    roots |= {package for name in roots for package in _upwards(name) if is_own(package)}
    found = {name: _hash(_find(name)) for name in roots}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        for imported in _imported(name):
            spec = None if imported in found else _find(imported)
            if spec is not None and _is_own(spec):
                found[imported] = _hash(spec)
                waiting.append(imported)
    return {name: known for name, known in sorted(found.items()) if known is not None}


def recorded_modules(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules in a job's parameters, each with the hash of its file when the job was created."""
    found: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            known = value.items() if name == MODULES else ()  # a parameter of the user may have this name too
            found |= {one: text for one, text in known if isinstance(text, str) and _HASH.fullmatch(text)}
            found |= recorded_modules(value)
    return found


def require_modules(recorded: Mapping[str, str], names: Iterable[str]) -> None:
    """Check that modules did not change since the job was created. Modules that are not found here are skipped.

    Raises FunctionError if the hash of a module's file is not the one in `recorded`.
    """
    for name in sorted(names):
        spec = _find(name)
        if spec is not None and _hash(spec) not in (None, NO_SOURCE, recorded[name]):
            raise FunctionError(
                f"{spec.origin}: the module {name} has changed since the job was created, so this worker runs other "
                "code. Its results are not recorded. Restore the module, or run the same command again as another job "
                "(--on-job-change)"
            )


def reference_to(target: Any) -> str | None:
    """Return ``module:name`` of a function or class if another process can import it by this name; else None."""
    names = [(getattr(target, "__module__", None), getattr(target, "__qualname__", None))]
    if inspect.isfunction(target):  # a wrapper has the name of the wrapped function, but its own code
        names.append((target.__globals__.get("__name__"), getattr(target.__code__, "co_qualname", None)))
    for module, name in names:
        if isinstance(module, str) and isinstance(name, str):
            found: Any = sys.modules.get(module)
            for part in name.split("."):
                found = getattr(found, part, None)
            is_method = inspect.ismethod(found) and found == target  # methods are created on each access
            if (found is target or is_method) and is_found(module):
                return f"{module}:{name}"
    return None


def is_found(name: str) -> bool:
    """Return whether another process finds a module by its name. A module may exist only in this process."""
    return name != MAIN and _find(name) is not None


def is_own(name: str) -> bool:
    """Return whether a module is one of the user's own files."""
    spec = _find(name)
    return spec is not None and _is_own(spec)


def _roots(reference: str) -> set[str]:
    target = import_object(reference)
    code: Any = inspect.unwrap(target) if callable(target) else target
    while hasattr(code, "func") and not inspect.isclass(code) and not inspect.isroutine(code):  # functools.partial
        code = inspect.unwrap(code.func)
    defined = code if inspect.isroutine(code) or inspect.isclass(code) else type(code)
    named = reference.partition(":")[0]
    above = {*inspect.getmro(defined), *inspect.getmro(type(defined))} if inspect.isclass(defined) else set()
    own = {kind.__module__ for kind in above if is_own(str(kind.__module__))}
    return {named, getattr(defined, "__module__", None) or named, *own}


def _upwards(name: str) -> Iterator[str]:
    """Yield the packages of a module, outermost first, and the module: importing it runs them all."""
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _find(name: str) -> ModuleSpec | None:
    """Return the spec of a module, without importing anything."""
    top, *inner = name.split(".")
    try:
        spec = find_spec(top)
        for part in inner:
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    except (ImportError, ValueError):  # the module was loaded without a record of its file
        return None
    return spec


def _is_own(spec: ModuleSpec) -> bool:
    """Return whether a module is a user's file, or a folder without `__init__.py`, which may contain user's files."""
    if spec.origin is None or not spec.has_location:
        return spec.origin is None and spec.submodule_search_locations is not None
    path = os.path.realpath(spec.origin)
    return not path.startswith(tuple(_installed())) and not _PACKAGES & set(path.split(os.sep))


@functools.cache
def _installed() -> set[str]:
    """Return the folders of installed modules: of Python, and of this package."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.add(os.path.dirname(sys.modules["ledgerbeam"].__file__ or ""))
    return {os.path.join(os.path.realpath(folder), "") for folder in folders if folder}


def _hash(spec: ModuleSpec | None) -> str | None:
    """Return a hash of a module's file; None for a folder without `__init__.py`."""
    if spec is None or not spec.has_location or spec.origin is None:
        return None if spec is not None and spec.submodule_search_locations is not None else NO_SOURCE
    try:
        source = _read(spec)
    except OSError:
        return NO_SOURCE
    _require_bytecode_of(spec, source)
    digest = blake2b(source, digest_size=8).hexdigest()
    if _is_own(spec):
        note_text(digest, source.decode)
    return digest


def _require_bytecode_of(spec: ModuleSpec, source: bytes) -> None:
    """Raise FunctionError if Python would run outdated bytecode in place of a module's source.

    Python runs bytecode of a source of the same size and modification second, even if the source has changed since.
    """
    if not str(spec.origin).endswith(_SOURCES) or not spec.cached:
        return
    try:
        with open(spec.cached, "rb") as file:
            cached = file.read()
        found = os.stat(str(spec.origin))
    except OSError:
        return
    stamp = pack("<III", 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
    is_used = cached[:_STAMPED] in (MAGIC_NUMBER + stamp, MAGIC_NUMBER + _UNCHECKED + cached[8:_STAMPED])
    if is_used and len(cached) > _STAMPED and not _is_compiled_of(cached[_STAMPED:], source, str(spec.origin)):
        raise FunctionError(
            f"{spec.cached}: this bytecode was compiled before {spec.origin} changed, with the same size and time, so "
            "Python would run the old code; delete this file, then run the same command again"
        )


def _is_compiled_of(code: bytes, source: bytes, name: str) -> bool:
    try:
        known = marshal.loads(code)  # noqa: S302 - as an import does
    except (EOFError, TypeError, ValueError):  # the import reports the error
        return True
    try:
        return bool(known == compile(source, name, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):  # Python would run the bytecode without checking the source
        return False


def _read(spec: ModuleSpec) -> bytes:
    """Return the content of a module's file, which may be in an archive. Raises OSError if there is no file."""
    try:
        with open(str(spec.origin), "rb") as file:
            return file.read()
    except OSError:
        read: Callable[[str], bytes] | None = getattr(spec.loader, "get_data", None)
        if read is None:
            raise
        return read(str(spec.origin))


def _imported(name: str) -> Iterator[str]:
    """Yield the names that a module's source may import. Some are names of functions or classes, not of modules."""
    spec = _find(name)
    if spec is None or not (spec.origin or "").endswith(_SOURCES):
        return
    is_package = spec.submodule_search_locations is not None
    package = name if is_package else name.rpartition(".")[0]
    try:
        found = list(imported_modules(_read(spec), package, is_package=is_package))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for imported in found:
        source, _, last = imported.rpartition(".")
        if last in (EVERY, _STAR):
            yield from _modules_in(source, only_exported=last == _STAR)
        else:
            yield from _upwards(imported)


def _modules_in(package: str, *, only_exported: bool) -> Iterator[str]:
    """Yield the names of all modules of a package of the user, or only of those that ``import *`` imports from it."""
    spec = _find(package)
    if spec is None or spec.submodule_search_locations is None or not _is_own(spec):
        return
    names = None
    if only_exported:
        with suppress(OSError):
            names = _exported_names(_read(spec))
    if names is None:
        names = [found.name for found in iter_modules(spec.submodule_search_locations)]
    yield from _upwards(package)
    yield from (f"{package}.{name}" for name in names)


def _held(name: str) -> Iterator[str]:
    """Yield the modules that define the attributes of an imported module."""
    module = sys.modules.get(name)
    for attribute, value in list(vars(module).items()) if module is not None else ():
        if isinstance(value, ModuleType):
            if value.__name__ != f"{name}.{attribute}":  # any import of a submodule sets this attribute
                yield value.__name__
        else:
            kind = value if isinstance(value, (FunctionType, type)) else type(value)
            yield str(kind.__module__)


_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def code_digest(code: CodeType) -> str:
    """Return a hash of code, the same in every process; comments, line numbers and file names have no effect."""
    digest = blake2b(digest_size=8)
    for part in _parts(code):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def global_names(code: CodeType) -> list[str]:
    """Return the globals that code, and the functions in it, look up, in the order of their first use."""
    return list(dict.fromkeys(step.argval for step in _steps(code) if step.opname in _GLOBALS))


def attribute_names(code: CodeType) -> set[str]:
    """Return the names of attributes and globals that code, and the functions in it, use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(attribute_names, inner))


def imported_names(code: CodeType) -> list[str]:
    """Return the names that code imports when it runs. Some are names of functions or classes, not of modules."""
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
_STAR = "**"  # last part of a name that stands for what ``from package import *`` imports

_IMPORTS = ("import_module", "__import__")
_LISTINGS = ("iter_modules", "walk_packages")
_HERE = ("__name__", "__package__", "__path__")


def imported_modules(source: bytes, package: str, *, is_package: bool) -> Iterator[str]:
    """Yield the full names that a source may import. Some are names of functions or classes, not of modules.

    `package` is the package of the source's module; with `is_package`, it is this module itself. The last part of a
    name can be `EVERY` or `_STAR`, which stand for several modules. Raises SyntaxError, ValueError or RecursionError if
    the source is not Python.
    """
    tree = ast.parse(source)
    is_open = False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                if above := _absolute("." * level + (module or ""), package):
                    yield above
                    yield from (f"{above}.{_STAR if alias.name == '*' else alias.name}" for alias in aliases)
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


def _exported_names(source: bytes) -> list[str] | None:
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
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AugAssign(target=ast.Name(id="__all__"), value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
                | ast.Call(func=ast.Attribute(value=ast.Name(id="__all__"), attr="extend"), args=[value])
            ):
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


def _absolute(name: str, package: str) -> str:
    """Return the full name of a module that may be named relative to a package."""
    plain = name.lstrip(".")
    level = len(name) - len(plain)
    if not level:
        return name
    above = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*above, *([plain] if plain else [])])


def _named(arguments: list[ast.expr], package: str) -> str | None:
    """Return the name that a call imports, or ``package.*`` if only a package is known; None if nothing is known."""
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
    """Return the known start of the text that an expression makes, and whether this is the whole text."""
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
    """Yield those texts (string literals) of a source that may be names of modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            plain = node.value.lstrip(".")
            if plain and all(part.isidentifier() for part in plain.split(".")):
                yield _absolute(node.value, package)
                if package:
                    yield f"{package}.{plain}"
