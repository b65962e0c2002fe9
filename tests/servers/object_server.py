"""What servers of objects have in common."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam.io.storage import client
from tests.servers.process import Process


@dataclass
class ObjectServer(ABC):
    """A running server of objects.

    Attributes:
        endpoint: `http://ADDRESS:PORT`, for Azure with the account behind it.
        numbers: Where fresh names come from.
    """

    endpoint: str
    process: Process
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Storage options with which fsspec reaches it."""

    def make(self, scheme: str, kind: str) -> str:
        """Make an empty bucket or container and return its name."""
        name = f"{kind}-{next(self.numbers):04d}"
        client.filesystem(scheme, self.options).mkdir(name)
        return name
