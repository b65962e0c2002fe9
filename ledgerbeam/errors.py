"""Every error that ledgerbeam raises on purpose.

    LedgerbeamError
    ├── UsageError                 (ValueError)         an argument that cannot mean anything
    ├── StorageError               (OSError)            a read or write that the store refused
    │   ├── SourceNotFoundError    (FileNotFoundError)  a pattern or URL that names nothing
    │   ├── ChangedSourceError                          a source that changed while it was read
    │   └── DiskFullError                               no room for an output, an index or the ledger
    ├── SourceError                (ValueError)         bytes that are not what their format says
    │   ├── RecordError                                 one record: bad JSON, bad UTF-8, a wrong shape
    │   ├── ArchiveError                                a tar that is truncated or damaged
    │   ├── RunFileError                                a run file of an exchange that is truncated or damaged
    │   └── NotIndexableError                           compressed or piped: it has no byte offsets
    ├── IndexError_                (ValueError)         an index that cannot be used
    │   ├── IndexNotFoundError     (FileNotFoundError)
    │   └── IndexMismatchError                          stale, short, unaligned, decreasing or foreign
    ├── CheckpointError            (RuntimeError)       a graph that cannot be saved or restored exactly
    │   └── CheckpointMismatchError                     the checkpoint of another graph, or of other data
    ├── FunctionError              (ValueError)         user code: cannot be imported, or a wrong shape returned
    ├── UnsupportedShapeError      (ValueError)         a transform whose lineage cannot be followed
    ├── RejectLimitError           (RuntimeError)       more records were rejected than the user allows
    ├── TasksFailedError           (RuntimeError)       tasks that failed, of a result that was asked for them
    ├── PublicationError           (RuntimeError)       outputs that are all there, but not the dataset asked for
    ├── WorkerDiedError            (RuntimeError)       a worker ended without a word
    └── LedgerError                (RuntimeError)
        ├── LedgerNotFoundError    (FileNotFoundError)
        ├── LedgerVersionError                          written by another version of ledgerbeam
        ├── LedgerDamagedError                          the environment or a row does not read, or rows are missing
        ├── JobMismatchError                            the ledger of another job
        ├── ScatterIncompleteError                      run files of an exchange that are not all there
        ├── NonDeterministicTaskError                   the same task, another result
        └── NegativePendingCountError                   more completions than tasks: an invariant is broken

Each takes exactly one positional message, because Beam rebuilds exceptions from their text and processes
exchange them by pickle. The message names the file, the record or offset, what was expected, what was found
and the remedy.
"""

from __future__ import annotations

__all__ = [
    "ArchiveError",
    "ChangedSourceError",
    "CheckpointError",
    "CheckpointMismatchError",
    "DiskFullError",
    "FunctionError",
    "IndexError_",
    "IndexMismatchError",
    "IndexNotFoundError",
    "JobMismatchError",
    "LedgerDamagedError",
    "LedgerError",
    "LedgerNotFoundError",
    "LedgerVersionError",
    "LedgerbeamError",
    "NegativePendingCountError",
    "NonDeterministicTaskError",
    "NotIndexableError",
    "PublicationError",
    "RecordError",
    "RejectLimitError",
    "RunFileError",
    "ScatterIncompleteError",
    "SourceError",
    "SourceNotFoundError",
    "StorageError",
    "TasksFailedError",
    "UnsupportedShapeError",
    "UsageError",
    "WorkerDiedError",
]


class LedgerbeamError(Exception):
    """Root of the errors that ledgerbeam raises on purpose."""

    exit_status = 1
    """What the command line exits with when this error ends it."""


class UsageError(LedgerbeamError, ValueError):
    """An argument, option or pattern that cannot mean anything."""

    exit_status = 2


class StorageError(LedgerbeamError, OSError):
    """A read or a write that the store refused, after retries."""


class SourceNotFoundError(StorageError, FileNotFoundError):
    """A pattern or URL that names nothing."""


class ChangedSourceError(StorageError):
    """A source whose size or version is no longer what was listed."""


class DiskFullError(StorageError):
    """No room is left for an output, an index or the ledger. Nothing that was recorded is lost."""


class SourceError(LedgerbeamError, ValueError):
    """Bytes that are not what their format says."""


class RecordError(SourceError):
    """One record that cannot be decoded or encoded."""


class ArchiveError(SourceError):
    """A tar archive that is truncated or damaged."""


class RunFileError(SourceError):
    """A run file of an exchange that is truncated or damaged."""


class NotIndexableError(SourceError):
    """A compressed or piped source: it can be streamed, but has no byte offsets to index."""


class IndexError_(LedgerbeamError, ValueError):  # noqa: N801, N818 - the trailing underscore keeps the builtin visible
    """An index that cannot be used."""


class IndexNotFoundError(IndexError_, FileNotFoundError):
    """A source without an index where one is needed."""


class IndexMismatchError(IndexError_):
    """An index that does not fit its source: stale, short, unaligned, decreasing or of another format."""


class CheckpointError(LedgerbeamError, RuntimeError):
    """An iterator graph that cannot be saved or restored exactly: the required data is missing."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint of another graph, of other data or of another shard."""


class FunctionError(LedgerbeamError, ValueError):
    """User code that cannot be imported or that returned something it must not."""


class UnsupportedShapeError(LedgerbeamError, ValueError):
    """A transform whose outputs cannot be traced to their source."""


class RejectLimitError(LedgerbeamError, RuntimeError):
    """More records were rejected than the limit of the run allows. All recorded work stays recorded."""


class TasksFailedError(LedgerbeamError, RuntimeError):
    """Tasks of a job failed, or its outputs are not as they should be: what `Result.raise_for_failures` raises."""


class PublicationError(LedgerbeamError, RuntimeError):
    """The metadata of a complete job's outputs cannot be published. The outputs are all there."""


class WorkerDiedError(LedgerbeamError, RuntimeError):
    """A worker process that ended without reporting: killed, out of memory or crashed."""


class LedgerError(LedgerbeamError, RuntimeError):
    """The ledger cannot be read, or must not be used as asked."""


class LedgerNotFoundError(LedgerError, FileNotFoundError):
    """No ledger at the given place."""


class LedgerVersionError(LedgerError):
    """A ledger that another version of ledgerbeam wrote, in a format that this one does not read."""


class LedgerDamagedError(LedgerError):
    """A ledger whose environment or rows do not read."""


class JobMismatchError(LedgerError):
    """The ledger belongs to a job that does something else."""


class ScatterIncompleteError(LedgerError):
    """The first stage of an exchange is not complete, so that its buckets would lack records."""


class NonDeterministicTaskError(LedgerError):
    """The same task gave another result: user code is not a pure function of its input."""


class NegativePendingCountError(LedgerError):
    """A source has more completions than tasks; an invariant is broken."""
