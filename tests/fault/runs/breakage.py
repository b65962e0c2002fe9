"""Breaking the library on purpose: each breakage takes out one check, which the simulation must notice."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from ledgerbeam.pipelines.outputs import recorded
from ledgerbeam.pipelines.outputs.owner import OutputOwner
from ledgerbeam.sources import files

# Without any look in planning the tasks of a local run would still carry the time that its launcher saw.
BREAKAGES: dict[str, AbstractContextManager[Any]] = {
    "no look in planning": mock.patch.object(files, "with_file_marks", lambda source, _: replace(source, changed_ns=0)),
    "parts of two files": mock.patch.object(recorded, "_differ", return_value=False),
    "no look for unrecorded shards": mock.patch.object(OutputOwner, "strangers", return_value=[]),
}
