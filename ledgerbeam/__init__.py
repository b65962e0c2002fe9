"""Index, process and restart: Apache Beam jobs over training data.

    import ledgerbeam

    reader = ledgerbeam.open("s3://bucket/cuts.000001.jsonl")          # any record, one ranged read away
    ledger = ledgerbeam.open_ledger("progress", read_only=True)        # what a job has done

What is needed less often is in `ledgerbeam.io`, `.ledger`, `.iterators`, `.sources` and `.transforms`.
A name is imported when it is used for the first time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledgerbeam import stats as stats
    from ledgerbeam.errors import FunctionError as FunctionError
    from ledgerbeam.errors import LedgerbeamError as LedgerbeamError
    from ledgerbeam.errors import LedgerError as LedgerError
    from ledgerbeam.errors import RecordError as RecordError
    from ledgerbeam.errors import SourceError as SourceError
    from ledgerbeam.errors import StorageError as StorageError
    from ledgerbeam.errors import UsageError as UsageError
    from ledgerbeam.io.formats.registry import open_source as open  # noqa: A004 - `ledgerbeam.open`, as of gzip
    from ledgerbeam.opening import open_ledger as open_ledger
    from ledgerbeam.results import Drop as Drop
    from ledgerbeam.results import Reject as Reject
    from ledgerbeam.results import Route as Route
    from ledgerbeam.results import Rows as Rows

__version__ = "0.1.0"
__all__ = [
    "Drop",
    "FunctionError",
    "LedgerError",
    "LedgerbeamError",
    "RecordError",
    "Reject",
    "Route",
    "Rows",
    "SourceError",
    "StorageError",
    "UsageError",
    "__version__",
    "open",
    "open_ledger",
    "stats",
]

_MODULES = ("stats",)
_ELSEWHERE = {
    "Drop": ("results", "Drop"),
    "Reject": ("results", "Reject"),
    "Route": ("results", "Route"),
    "Rows": ("results", "Rows"),
    "open": ("io.formats.registry", "open_source"),
    "open_ledger": ("opening", "open_ledger"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    module, attribute = _ELSEWHERE.get(name, ("errors", name))
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
