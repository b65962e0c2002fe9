"""Adapter of your own: document filters of NeMo Curator. docs/other-libraries.md explains it.

It needs only the interface of a filter: `score_document` and `keep_document`. Name it as an entry point of a package:

    [project.entry-points."ledgerbeam.adapters"]
    nemo_curator = "own_adapter:CuratorAdapter"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ledgerbeam import Drop
from ledgerbeam.adapters import Adapter
from ledgerbeam.errors import FunctionError


class CuratorAdapter(Adapter):
    """Document filters of NeMo Curator: instances, and classes whose parameters `--set` gives."""

    def knows(self, target: Any) -> bool:
        """Return whether an object is a document filter."""
        kind = target if inspect.isclass(target) else type(target)
        return hasattr(kind, "score_document") and hasattr(kind, "keep_document")

    def adapt(self, target: Any, *, batched: bool) -> Callable[..., Any]:
        """Return a class, of which each worker builds one object, or a function."""
        kind: Any = target if inspect.isclass(target) else type(target)
        if getattr(kind.score_document, "batched", False):
            raise FunctionError(f"{kind.__name__}: it scores a whole partition; use a filter that scores one document")

        def keep(document_filter: Any, record: dict[str, Any]) -> Any:
            score = document_filter.score_document(record["text"])
            return record if document_filter.keep_document(score) else Drop(kind.__name__)

        def call(document_filter: Any, given: Any) -> Any:
            return [keep(document_filter, one) for one in given] if batched else keep(document_filter, given)

        if not inspect.isclass(target):
            return lambda given: call(target, given)

        class Filter:
            __signature__ = inspect.signature(target)

            def __init__(self, **values: Any) -> None:
                self.filter = target(**values)

            def __call__(self, given: Any) -> Any:
                return call(self.filter, given)

        return Filter
