"""Small changes of a module's source text, each of which some test should notice.

A change replaces the text of one expression or statement and keeps every line where it is. Left alone are messages
(strings, what is raised), annotations, names for types, docstrings and decorators, and that what is zipped is of one
length.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import accumulate

_COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Sub: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"sorted": "list", "reversed": "list", "max": "min", "min": "max", "any": "all", "all": "any"}
_SILENT = ("__all__", "__slots__")


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        path: Of the module, relative to the repository.
        function: Qualified name of what the change lies in; empty in the body of the module.
        line: Where the change begins, from 1.
        last: Where it ends.
        before: The text that is replaced.
        after: What replaces it.
        statement: The line that the change begins in, without its indent: where an explanation fits.
        source: The whole changed module.
        at_import: It is outside of functions, so it acts when the module is imported.
    """

    path: str
    function: str
    line: int
    last: int
    before: str
    after: str
    statement: str
    source: bytes
    at_import: bool

    def is_valid(self) -> bool:
        try:
            compile(self.source, self.path, "exec")
        except SyntaxError:
            return False
        return True

    def __str__(self) -> str:
        where = f"{self.path}:{self.line} {self.function}"
        return f"{where}\n    in  {self.statement}\n    -   {self.before}\n    +   {self.after}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """List every change of a module, in the order of its lines. Changes that come to the same text count once."""
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    found: dict[bytes, Mutant] = {}
    for function, node, after, at_import in _Walk().changes(ast.parse(source)):
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[operator]
        before = source[begin:end]
        lines = b"\n" * before.count(b"\n")
        text = after.encode()
        text = text + lines if isinstance(node, ast.stmt) else b"(" + text + lines + b")"
        changed = source[:begin] + text + source[end:]
        statement = source.splitlines()[node.lineno - 1].decode().strip()
        what = " ".join(before.decode().split())
        found.setdefault(
            changed,
            Mutant(path, function, node.lineno, node.end_lineno or 0, what, after, statement, changed, at_import),
        )
    return sorted(found.values(), key=lambda mutant: mutant.line)


_Change = tuple[str, ast.expr | ast.stmt, str, bool]


class _Walk:
    """Goes through a tree with the name of the function that it is in."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._in_function = False

    def changes(self, node: ast.AST) -> Iterator[_Change]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from self._of_definition(node)
            return
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in _SILENT for t in node.targets):
            return
        if isinstance(node, ast.Assign) and not self._names and _is_type(node.value):
            return
        if isinstance(node, ast.expr | ast.stmt):
            for after in _changes_of(node):
                yield ".".join(self._names), node, after, not self._in_function
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.BoolOp):
            yield ".".join(self._names), node.test, f"not ({ast.unparse(node.test)})", not self._in_function
        if isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Raise):
            yield ".".join(self._names), node.body[0], "raise", not self._in_function
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "exc", "cause", "msg") or isinstance(value, ast.JoinedStr):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and not _is_silent(child):
                    yield from self.changes(child)

    def _of_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[_Change]:
        if node.name == "__repr__":
            return
        before = self._in_function
        self._names.append(node.name)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from self.changes(default)
            self._in_function = True
        for child in node.body:
            if not _is_silent(child):
                yield from self.changes(child)
        self._in_function = before
        self._names.pop()


def _is_type(node: ast.expr) -> bool:
    """Return whether what a module gives a name is a type with parameters."""
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Attribute)


def _is_silent(node: ast.AST) -> bool:
    """Return whether a part does nothing but speak: a docstring, an import, what only type checkers read, `strict`."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _changes_of(node: ast.expr | ast.stmt) -> Iterator[str]:
    """Return the texts that may stand in the place of a node."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Compare):
        yield from _of_comparison(node)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _with(node, op=other)
        for place in range(len(node.values)):
            rest = node.values[:place] + node.values[place + 1 :]
            yield ast.unparse(rest[0]) if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.BinOp):
        if type(node.op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(node.op)]())
        elif isinstance(node.op, ast.Add | ast.Mult):
            yield ast.unparse(node.left)
            yield ast.unparse(node.right)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node)
    elif isinstance(node, ast.IfExp):
        yield ast.unparse(node.body)
        yield ast.unparse(node.orelse)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        for place, loop in enumerate(node.generators):
            if loop.ifs:
                bare = copy(loop)
                bare.ifs = []
                yield _with(node, generators=[*node.generators[:place], bare, *node.generators[place + 1 :]])
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        names = all(isinstance(part, ast.Name | ast.Starred) for part in node.elts)
        is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        for place in range(len(node.elts)) if names and is_read and len(node.elts) > 1 else ():
            yield _with(node, elts=node.elts[:place] + node.elts[place + 1 :])


def _of_statement(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Return):
        if node.value is None:
            yield "pass"
        elif not isinstance(node.value, ast.Constant):
            yield "return None"
    elif _may_be_dropped(node):
        yield "pass"


def _may_be_dropped(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Yield | ast.YieldFrom | ast.Await)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.Raise | ast.Continue | ast.Break | ast.Delete | ast.AugAssign)


def _of_comparison(node: ast.Compare) -> Iterator[str]:
    for place, operator in enumerate(node.ops):
        for other in _COMPARISONS[type(operator)]:
            yield _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
    yield "True"
    yield "False"


def _of_constant(node: ast.Constant) -> Iterator[str]:
    if isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node.value, int):
        yield str(node.value + 1)
        if node.value == 1:
            yield "0"
    elif isinstance(node.value, float):
        yield str(node.value * 2 + 1)


def _of_call(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        wanted = node.args if _CALLS[node.func.id] == "list" else None
        name = ast.Name(_CALLS[node.func.id])
        yield _with(node, func=name) if wanted is None else _with(node, func=name, keywords=[])
    for place, keyword in enumerate(node.keywords):
        if keyword.arg is not None and not isinstance(keyword.value, ast.Constant):
            yield _with(node, keywords=node.keywords[:place] + node.keywords[place + 1 :])


def _with(node: ast.AST, **fields: object) -> str:
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return ast.unparse(changed)
