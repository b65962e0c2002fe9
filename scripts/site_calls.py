"""Griffe extension: the signature and the reference of each call come from the table of options."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe

__all__ = ["CallReference"]

_KINDS: dict[Any, Any] = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
}


class CallReference(griffe.Extension):
    """Replaces the signature and the docstring of each public call."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace the signature and the docstring of one function, if it is a public call."""
        if not any("public" in str(one.value) for one in func.decorators):
            return
        module = importlib.import_module(func.module.path)
        importlib.import_module("ledgerbeam.pipelines.calls.call").document(call := getattr(module, func.name))
        func.docstring = griffe.Docstring(inspect.getdoc(call) or "", parent=func)
        func.parameters = griffe.Parameters(*map(_parameter, inspect.signature(call).parameters.values()))


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    default = None if one.default is one.empty else repr(one.default)
    hint = one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
    return griffe.Parameter(one.name, annotation=hint, kind=_KINDS[one.kind], default=default)
