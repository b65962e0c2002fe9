"""In which form the records of a task are read: as a list of them, or as a table."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["RecordForm"]

RecordForm: TypeAlias = Literal["records", "arrow"]
"""What the records of a task are: a list, or a `pyarrow.Table`, of which each row is a record."""
