"""Parts of functions, for the identity of a job: code, captured values, and the user's modules.

A function in a module is identified by its name and the sources of the user's modules that it uses. Other functions are
followed into all their parts: functions of a script, a notebook or a prompt; lambdas, closures, partials, methods of
objects, callable objects. Each part has a name, so that a ledger of another job can report the changed parts. Values
are followed as pickle follows them. Addresses and the order of sets, which differ between processes, have no effect.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import blake2b
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, cast

from ledgerbeam._base.redaction import is_credential
from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.job import note_text, shown_value
from ledgerbeam.user_code.adapters import ASSETS, adapter_of, file_checksums
from ledgerbeam.user_code.guards import error_name, is_interrupt, message_of
from ledgerbeam.user_code.loading import MAIN, GivenObject, Reference, import_object
from ledgerbeam.user_code.modules import (
    attribute_names,
    code_digest,
    global_names,
    imported_names,
    is_found,
    is_own,
    listing,
    modules_of,
    reference_to,
    user_modules,
)

# Attribute of a class: names of parameters whose values are paths of files that belong to the job.
FILE_VALUES = "file_values"

CACHED = type(functools.lru_cache(len))
_CODE = (FunctionType, BuiltinFunctionType, MethodType, functools.partial, type, CACHED)

_TEXTS = (str, bytes, bytearray)
_SHOWN = (bool, int, float, complex, type(None))
_LONGEST_SHOWN = 40
# Types of class attributes that `_Follower` takes apart itself: they cannot be pickled, or only with a lock.
_FOLLOWED = (FunctionType, staticmethod, classmethod, property, functools.cached_property)
# Attributes that give the place of a class, or that are derived from its other attributes.
_OF_PYTHON = {
    *("__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"),
    *("__slotnames__", "_abc_impl", "_value2member_map_"),  # filled at run time
}
_OF_WRAPPERS = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"}
_OF_CACHED_PROPERTIES = {"func", "attrname", "lock"}  # attributes that Python sets on wrappers of functions

_OF_SLOTS = (MemberDescriptorType, GetSetDescriptorType)

_PYDANTIC, _VALIDATORS = "__pydantic_", "__pydantic_decorators__"
# Attributes that decide the behaviour of a pydantic model. Its other ``__pydantic_...`` are derived, with addresses.
_OF_PYDANTIC = {"__pydantic_fields__", "__pydantic_computed_fields__", _VALIDATORS}


@dataclass
class FunctionParts:
    """The parts of functions, by name."""

    order: list[str] = field(default_factory=list)  # names of the functions, in the given order
    code: dict[str, str] = field(default_factory=dict)  # hashes, for functions and classes that are in no module
    values: dict[str, str] = field(default_factory=dict)  # a number unchanged; for other values the type and a hash
    modules: set[str] = field(default_factory=set)  # the user's modules that are used
    unfound: set[str] = field(default_factory=set)  # used modules that exist only in this process

    def as_parameters(self) -> dict[str, dict[str, str]]:
        """Return hashes of the parts, grouped as code, captured values and modules. Empty groups are left out."""
        groups = {"code": self.code, "captured value": self.values, "module": modules_of(self.modules)}
        return {name: group for name, group in groups.items() if group}


def function_parts(*functions: Callable[..., Any]) -> FunctionParts:
    """Return the parts of functions, which are given as objects.

    Raises FunctionError if a captured value cannot be copied to another process, or is a random number generator.
    """
    walk = _Follower()
    for function in functions:
        try:
            walk.parts.order.append(walk.follow(function))
        except RecursionError:
            raise FunctionError(
                f"{function_name(function)}: a captured value is nested too deeply; read the value from a file instead"
            ) from None
    return walk.parts


def code_identity(*functions: Callable[..., Any]) -> dict[str, Any]:
    """Return the identity of functions for a job's parameters: their order, and hashes of their parts by name.

    Another code, another captured value, another content of a user's module that they use, or another order of the
    functions makes another job, and the ledger reports the change.

    Args:
        functions: Callables: functions and classes of modules, lambdas, closures, partials, methods and objects with
            ``__call__``. The same callable may occur several times.

    Raises:
        FunctionError: An argument cannot be called, or a captured value cannot be copied to another process.
    """
    for function in functions:
        if not callable(function):
            raise FunctionError(f"{function!r:.200}: expected a function, found {type(function).__name__}")
    parts = function_parts(*functions)
    parts.modules |= {reference.partition(":")[0] for reference in filter(None, map(reference_to, functions))}
    return {"order": parts.order, **parts.as_parameters()}


def made_of(
    reference: Reference, values: Mapping[str, Any] | None = None, style: str | None = None
) -> dict[str, dict[str, str]]:
    """Return the parts of the object that a job calls, in groups, for the parameters of the job.

    For an object of another library these are also the versions of packages, the assets that it reads with the values
    of ``--set``, and the parameters of an instance. Raises FunctionError like `function_parts`; also if the
    object cannot be loaded.
    """
    target = import_object(reference)
    adapter = adapter_of(target, style)
    if not isinstance(reference, str):
        parts = function_parts(adapter.portable(target) if adapter else target).as_parameters()
    else:
        parts = {"module": user_modules(reference)}
        if adapter and not inspect.isclass(target) and not inspect.isroutine(target):
            # Plain data with the name of a constructor's parameter: others may be counters, or differ in each process.
            walk, sent = _Follower(), adapter.portable(target)
            named = inspect.signature(type(sent).__init__).parameters
            held = {name: value for name, value in getattr(sent, "__dict__", {}).items() if name in named}
            parts["attribute"] = {name: walk.shown(name, value) for name, value in held.items() if _is_plain(value)}
    names = getattr(target, FILE_VALUES, ()) if inspect.isclass(target) else ()
    if files := {name: value for name in names if isinstance(value := (values or {}).get(name), str)}:
        parts[ASSETS] = file_checksums(files)
    return {**parts, **adapter.identity(target, values or {})} if adapter else parts


def changed_parts(
    reference: Reference,
    recorded: Mapping[str, Mapping[str, str]],
    values: Mapping[str, Any] | None = None,
    style: str | None = None,
) -> list[str]:
    """Return the parts of an object that differ from the recorded ones, sorted, in the form ``module cleaning``."""
    found, known = (
        {(group, name, value) for group, names in groups.items() for name, value in names.items()}
        for groups in (made_of(reference, values, style), recorded)
    )
    return sorted({f"{group} {name}" for group, name, _ in found ^ known})


def reference_of(given: Reference | Callable[..., Any]) -> Reference:
    """Return a pipeline's reference to a user's object: its name if another process can import it, else the object."""
    if isinstance(given, Reference) or not (callable(given) or adapter_of(given)):
        return given
    return reference_to(given) or GivenObject(function_name(given), given)


def function_name(function: Any) -> str:
    """Return the name of a function for people: ``module:name``; for a callable object the name of its class."""
    code: Any = function
    while isinstance(code, (functools.partial, MethodType)):
        if isinstance(code, MethodType):
            return f"{_module_of(code.__func__)}:{_short(code.__func__)}"
        code = code.func
    named = code if getattr(code, "__qualname__", None) else type(code)
    return f"{_module_of(named)}:{_short(named)}"


class _Follower:
    """Follows functions into their parts, each part once, and gives each part a unique name.

    Of several objects of a class, and of several partials of a function, the second has the name of the first and
    ``(2)``. So a name stands for one part, and the captured values of two parts are not confused.
    """

    def __init__(self) -> None:
        self.parts = FunctionParts()
        self._names: dict[int, tuple[Any, str]] = {}  # by id, with the object, which keeps the id in use
        self._numbers: dict[str, int] = {}
        self._walked: set[int] = set()
        self._tokens: dict[int, tuple[Any, bytes]] = {}
        self._open: list[int] = []
        self._place = ""

    def follow(self, target: Any) -> str:
        """Add a callable and its parts to `parts`; return its name."""
        reference = reference_to(target)
        if reference is not None:
            self._use(reference.partition(":")[0])
            return reference
        name = self._name(target)
        if id(target) not in self._walked:
            self._walked.add(id(target))
            self._walk(target, name)
        return name

    def _walk(self, target: Any, name: str) -> None:
        if isinstance(target, (FunctionType, type)) and target.__module__ in sys.modules:
            self._note_unfound(target.__module__)
        match target:
            case FunctionType():
                self._function(target, name)
            case functools.partial():
                self._partial(target, name)
            case MethodType():
                self.follow(target.__func__)
                self.follow(target.__self__)
            case BuiltinFunctionType() if not isinstance(target.__self__, ModuleType):
                self._capture("the object", target.__self__, name)
            case type():
                self._class(target, name)
            case _ if isinstance(target, CACHED):
                self.follow(target.__wrapped__)
                self._attributes(target, name)
            case _:
                self._object(target, name)

    def _name(self, target: Any) -> str:
        """Return the name of a part, the same at each call for one part."""
        reference = reference_to(target)
        if reference is not None:
            return reference
        if id(target) not in self._names:
            self._names[id(target)] = target, self._new_name(target)
        return self._names[id(target)][1]

    def _new_name(self, target: Any) -> str:
        match target:
            case FunctionType():
                return self._name_of_code(_short(target))
            case type():
                return self._name_of_code(f"class {_short(target)}")
            case functools.partial():
                return self._numbered(f"partial {self._name(target.func)}")
            case MethodType():
                return f"{self._name(target.__func__)} of {self._name(target.__self__)}"
            case _ if isinstance(target, CACHED):
                return self._name(target.__wrapped__)
            case BuiltinFunctionType():
                return self._numbered(_short(target))
            case _:
                return self._numbered(self._name(type(target)).removeprefix("class "))

    def _name_of_code(self, plain: str) -> str:
        name, number = plain, 1
        while name in self.parts.code:
            number += 1
            name = f"{plain} {number}"
        self.parts.code[name] = ""  # set later
        return name

    def _numbered(self, name: str) -> str:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        return name if number == 1 else f"{name} ({number})"

    def _use(self, module: str) -> None:
        self._note_unfound(module)
        if is_own(module):
            self.parts.modules.add(module)

    def _note_unfound(self, module: str) -> None:
        if module != MAIN and not is_found(module):
            self.parts.unfound.add(module)

    def _partial(self, target: functools.partial[Any], name: str) -> None:
        self.follow(target.func)
        for number, value in enumerate(target.args, 1):
            self._capture(f"argument {number}", value, name)
        for key, value in target.keywords.items():
            self._capture(repr(key), value, name)
        if type(target) is not functools.partial:
            self.follow(type(target))
            self._attributes(target, name)

    def _attributes(self, target: Any, name: str) -> None:
        for attribute, value in attributes_of(target).items():
            self._capture(repr(attribute), value, name)

    def _function(self, function: FunctionType, name: str) -> None:
        code = function.__code__
        self.parts.code[name] = code_digest(code)
        note_text(self.parts.code[name], functools.partial(_source, code))
        if is_dispatcher(function):
            self._capture("the function of each type", dict(function.registry), name)  # type: ignore[attr-defined]
            return
        for imported in imported_names(code):
            if is_own(imported):
                self.parts.modules.add(imported)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # the captured name has no value yet
                continue
            self._capture(repr(variable), value, name)
        for variable in global_names(code):
            if variable in function.__globals__:
                self._capture(repr(variable), function.__globals__[variable], name)
                self._submodules(function.__globals__[variable], attribute_names(code))
        arguments, values = code.co_varnames[: code.co_argcount], function.__defaults__ or ()
        defaults = dict(zip(arguments[len(arguments) - len(values) :], values, strict=True))
        for variable, value in (defaults | (function.__kwdefaults__ or {})).items():
            self._capture(f"the default of {variable!r}", value, name)
        self._attributes(function, name)

    def _submodules(self, found: Any, names: set[str]) -> None:
        """Add to `parts` the modules of a package that code reaches by attributes: `package.module.function`."""
        if isinstance(found, ModuleType) and is_own(found.__name__):
            for name in names:
                inner = getattr(found, name, None)
                if isinstance(inner, ModuleType) and is_own(f"{found.__name__}.{name}"):
                    self.parts.modules.add(f"{found.__name__}.{name}")
                    self._submodules(inner, names - {name})

    def _class(self, kind: type, name: str) -> None:
        """Add a class to `parts`: its bases, its metaclass, and its own attributes."""
        above = [self._token(base) for base in kind.__bases__]
        if type(kind) is not type:
            above.append(b"metaclass " + self._token(type(kind)))
        self.parts.code[name] = blake2b(b",".join(above), digest_size=8).hexdigest()
        note_text(self.parts.code[name], functools.partial(_head, kind))
        for attribute, value in (*vars(kind).items(), *_of_metaclass(kind)):
            if not _is_derived(kind, attribute, value):
                self._attribute(attribute, _rules(value) if attribute == _VALIDATORS else value, name)

    def _attribute(self, attribute: str, value: Any, owner: str) -> None:
        match value:
            case FunctionType():
                self.follow(value)
            case staticmethod() | classmethod():
                self._attribute(attribute, value.__func__, owner)
            case property():
                for part in filter(None, (value.fget, value.fset, value.fdel)):
                    self._attribute(attribute, part, owner)
            case functools.cached_property():
                self._attribute(attribute, value.func, owner)
            case _:
                self._capture(repr(attribute), value, owner)
        if isinstance(value, _FOLLOWED) and type(value) not in _FOLLOWED:
            self.follow(type(value))
            for inner, part in attributes_of(value).items():
                self._capture(f"{inner!r} of {attribute!r}", part, owner)

    def _object(self, target: Any, name: str) -> None:
        """Add an object to `parts`: each value of its state, by name."""
        with self._at("its state", name):
            self._refuse_random(target)
            made, arguments, state, *rest = self._reduced(target)
            self._token(type(target))
            named = state if isinstance(state, dict) else None
            if isinstance(state, tuple) and len(state) == 2 and all(isinstance(part, dict | None) for part in state):
                named = (state[0] or {}) | (state[1] or {})  # the second part has the slots
            others = [part for part in ([state] if named is None else []) + rest if part is not None]
            if made in (copyreg.__newobj__, copyreg.__newobj_ex__):  # type: ignore[attr-defined]
                others = [*arguments[1:], *others]  # the first argument is the class
            else:
                others = [*arguments, *others, made]
        for attribute, value in (named or {}).items():
            self._capture(repr(attribute), value, name)
        for number, value in enumerate(others, 1):
            self._capture(f"part {number}", value, name)

    def _capture(self, variable: str, value: Any, owner: str) -> None:
        with self._at(f"the captured value {variable}", owner):
            plain = variable.strip("'")
            if _is_code(value):
                shown = self.follow(value)
                if shown == _short(value) == plain:
                    return  # a function known by its own name: its code is already a part
            elif isinstance(value, ModuleType):
                self._use(value.__name__)
                shown = f"module {value.__name__}"
            else:
                shown = self.shown(plain, value)
            self.parts.values[f"{variable} of {owner}"] = shown

    def shown(self, name: str, value: Any) -> str:
        """Return a short value unchanged. For other values return the type and a hash, and note the text."""
        if type(value) in _SHOWN and len(repr(value)) <= _LONGEST_SHOWN and not is_credential(name, value):
            return repr(value)
        found = f"{type(value).__name__} {blake2b(self._token(value), digest_size=8).hexdigest()}"
        with suppress(ValueError):
            note_text(found, functools.partial(str, shown_value(name, value)), is_code=False)
        return found

    @contextmanager
    def _at(self, what: str, owner: str) -> Iterator[None]:
        before, self._place = self._place, f"{owner.rpartition(':')[2]}: {what}"
        try:
            yield
        finally:
            self._place = before

    def _token(self, value: Any) -> bytes:
        """Return bytes that are equal for equal values, in all processes."""
        kind = type(value)
        if kind in _SHOWN:
            return f"{kind.__name__} {value!r}".encode()
        if kind in _TEXTS:
            data = value.encode("utf-8", "surrogatepass") if kind is str else value
            return kind.__name__.encode() + b" " + _hash([data])
        if id(value) in self._open:
            return f"the one {len(self._open) - self._open.index(id(value))} above".encode()
        known = self._tokens.get(id(value))
        if known is None:
            self._open.append(id(value))
            try:
                known = value, self._compound(value)
            finally:
                self._open.pop()
            self._tokens[id(value)] = known
        return known[1]

    def _compound(self, value: Any) -> bytes:
        kind = type(value)
        if _is_code(value):
            return f"code {self.follow(value)}".encode()
        if isinstance(value, ModuleType):
            self._use(value.__name__)
            return f"module {value.__name__}".encode()
        if isinstance(value, CodeType):
            return f"code {code_digest(value)}".encode()
        if kind in (list, tuple):
            return kind.__name__.encode() + _hash(map(self._token, value))
        if kind in (dict, MappingProxyType):
            return kind.__name__.encode() + _hash(self._token(part) for item in value.items() for part in item)
        if kind in (set, frozenset):
            return kind.__name__.encode() + _hash(sorted(map(self._token, value)))
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and not value.dtype.hasobject:
            return b"array" + _hash([str((value.dtype.descr, value.shape)).encode(), value.tobytes()])
        self._refuse_random(value)
        return f"object {_short(kind)}".encode() + _hash(map(self._token, self._reduced(value)))

    def _reduced(self, value: Any) -> tuple[Any, ...]:
        """Return the parts of an object as pickle has them: what to call, its arguments, the state, and the items."""
        kind = type(value)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            found = value.__reduce_ex__(4) if reduce is None else reduce(value)
            if isinstance(found, str):
                return f"{_module_of(value)}:{found}", (), None
            made, arguments, state, items, pairs, *_ = (*cast("tuple[Any, ...]", found), None, None, None)
            listed = None if items is None else list(items)
            return made, arguments, state, listed, None if pairs is None else [list(pair) for pair in pairs]
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise FunctionError(
                f"{self._place} is or contains a {_short(kind)}, which cannot be copied to workers "
                f"({error_name(error)}: {message_of(error)}); create it inside the function, or pass a class instead "
                "of a function: each worker builds one object of it"
            ) from error

    def _refuse_random(self, value: Any) -> None:
        module, name = type(value).__module__, type(value).__name__
        is_numpy = module.startswith("numpy.random") and name != "SeedSequence"
        is_torch = module.startswith("torch") and name == "Generator"
        if isinstance(value, random.Random) or is_numpy or is_torch:  # noqa: S311 - to refuse it
            raise FunctionError(
                f"{self._place} is or contains a {name} of {module.partition('.')[0]}. Its numbers depend on all "
                "earlier calls, so a restarted job would end with other bytes; create one inside the function, seeded "
                "from the record"
            )


def _is_code(value: Any) -> bool:
    """Return whether a value is a function, class or method, perhaps in a partial."""
    return isinstance(value, _CODE) or reference_to(value) is not None


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, a regular expression, or a collection of these."""
    if type(value) in (dict, list, tuple, set, frozenset):
        return all(map(_is_plain, [*value, *value.values()] if isinstance(value, dict) else value))
    return type(value) in (*_SHOWN, *_TEXTS, re.Pattern)


def attributes_of(wrapper: Any) -> dict[str, Any]:
    """Return the attributes that the user's program has set on a function, or on a wrapper of one."""
    kept = _OF_WRAPPERS | (_OF_CACHED_PROPERTIES if isinstance(wrapper, functools.cached_property) else set())
    return {name: value for name, value in getattr(wrapper, "__dict__", {}).items() if name not in kept}


def is_dispatcher(function: Any) -> bool:
    """Return whether a function is made by `functools.singledispatch`, which selects a function by type."""
    return isinstance(function, FunctionType) and isinstance(getattr(function, "registry", None), MappingProxyType)


def _is_derived(kind: type, attribute: str, value: Any) -> bool:
    """Return whether an attribute is computed from other parts of its class, so that it is not a part itself."""
    if attribute in _OF_PYTHON:
        return True
    if isinstance(value, _OF_SLOTS):  # `__slots__` names them
        return value.__objclass__ is kind
    if attribute.startswith(_PYDANTIC):
        return attribute not in _OF_PYDANTIC
    if attribute == "__doc__":  # the docstring of a dataclass has the addresses of its default values
        return value is None or (is_dataclass(kind) and value.startswith(f"{kind.__name__}("))
    return False


def _of_metaclass(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each attribute that a metaclass written in C stores outside of the class."""
    for base in inspect.getmro(type(kind)):
        for attribute, held in vars(base).items() if base not in (type, object) else ():
            if isinstance(held, _OF_SLOTS) and attribute not in vars(kind):
                yield attribute, getattr(kind, attribute)


def _rules(validators: Any) -> Any:
    """Return the settings of the validators of a pydantic model; their functions are attributes of the model."""
    found = {one.name: getattr(validators, one.name) for one in fields(validators)}
    return {
        name: {function: rule.info for function, rule in rules.items()}
        for name, rules in found.items()
        if isinstance(rules, dict) and all(hasattr(rule, "info") for rule in rules.values())
    }


def _source(code: CodeType) -> str:
    """Return the source of code; without a source, as at a prompt, a listing of its instructions."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return "\n".join(listing(code))


def _head(kind: type) -> str:
    above = [_short(base) for base in kind.__bases__ if base is not object]
    above += [] if type(kind) is type else [f"metaclass={_short(type(kind))}"]
    return f"class {_short(kind)}({', '.join(above)})"


def _module_of(target: Any) -> str:
    return str(getattr(target, "__module__", None) or MAIN)


def _short(target: Any) -> str:
    """Return the name of a function or class without the name of an enclosing function."""
    name = getattr(target, "__qualname__", None)
    return str(name if isinstance(name, str) else type(target).__qualname__).rpartition("<locals>.")[2]


def _hash(parts: Iterable[bytes]) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest().encode()
