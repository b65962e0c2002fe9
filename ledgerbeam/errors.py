"""Errors of ledgerbeam.

    LedgerbeamError
    ├── UsageError                 (ValueError)         an invalid argument, option or pattern
    │   └── ColumnsNotFoundError                        columns beside records that are missing
    ├── StorageError               (OSError)            a read or write that the store refused
    │   ├── SourceNotFoundError    (FileNotFoundError)  a pattern or URL that matches nothing
    │   ├── ChangedSourceError                          a source that changed while it was read
    │   └── DiskFullError                               no room for an output, an index or the ledger
    ├── SourceError                (ValueError)         bytes that do not have the expected format
    │   ├── RecordError                                 one record: bad JSON, bad UTF-8, a wrong shape
    │   ├── ArchiveError                                a tar that is truncated or damaged
    │   ├── RunFileError                                a run file of an exchange that is truncated or damaged
    │   └── NotIndexableError                           a compressed or piped source: it has no byte offsets
    ├── IndexError_                (ValueError)         an index that cannot be used
    │   ├── IndexNotFoundError     (FileNotFoundError)
    │   └── IndexMismatchError                          an index that does not fit its source
    ├── CheckpointError            (RuntimeError)       a graph that cannot be saved or restored exactly
    │   └── CheckpointMismatchError                     the checkpoint of another graph, or of other data
    ├── FunctionError              (ValueError)         user code that cannot be imported, or returned a wrong value
    ├── UnsupportedShapeError      (ValueError)         a transform whose outputs cannot be traced to their source
    ├── RejectLimitError           (RuntimeError)       more rejected records than the user allows
    ├── BudgetSpentError           (RuntimeError)       a budget of paid calls that is spent
    ├── ServiceError               (RuntimeError)       calls of a service that all fail
    ├── TasksFailedError           (RuntimeError)       failed tasks, raised by `Result.raise_for_failures`
    ├── PublicationError           (RuntimeError)       complete outputs that cannot be published as a dataset
    ├── WorkerDiedError            (RuntimeError)       a worker that ended without a report
    └── LedgerError                (RuntimeError)
        ├── LedgerNotFoundError    (FileNotFoundError)
        ├── LedgerVersionError                          written by another version of ledgerbeam
        ├── LedgerDamagedError                          unreadable LMDB files, rows or objects, or missing rows
        ├── JobMismatchError                            the ledger of another job
        ├── ScatterIncompleteError                      missing run files of an exchange
        ├── NonDeterministicTaskError                   the same task with another result
        └── NegativePendingCountError                   more finished tasks than planned tasks

The message is the only positional argument of each error, because Beam rebuilds exceptions from their text, and
processes exchange them by pickle. It has the file, the record or offset, what was expected and found, and the remedy.
"""

from __future__ import annotations


class LedgerbeamError(Exception):
    """Base class of the errors of ledgerbeam."""

    exit_status = 1
    """Exit status of a command that this error ends."""


class UsageError(LedgerbeamError, ValueError):
    """An invalid argument, option or pattern."""

    exit_status = 2


class ColumnsNotFoundError(UsageError):
    """A folder without columns, or without a column that a condition needs."""


class StorageError(LedgerbeamError, OSError):
    """A read or a write that the store refused, after retries."""


class SourceNotFoundError(StorageError, FileNotFoundError):
    """A pattern or URL that matches nothing."""


class ChangedSourceError(StorageError):
    """A source whose size or version has changed since it was listed."""


class DiskFullError(StorageError):
    """No space for an output, an index or the ledger. Recorded work is not lost."""


class SourceError(LedgerbeamError, ValueError):
    """Bytes that do not have the expected format."""


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
    """A missing index that is needed to read a source."""


class IndexMismatchError(IndexError_):
    """An index that does not fit its source: stale, short, unaligned, decreasing or of another format."""


class CheckpointError(LedgerbeamError, RuntimeError):
    """An iterator graph that cannot be saved or restored exactly, because required data is missing."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint of another graph, of other data or of another shard."""


class FunctionError(LedgerbeamError, ValueError):
    """User code that cannot be imported, or that returned an invalid value."""


class UnsupportedShapeError(LedgerbeamError, ValueError):
    """A transform whose outputs cannot be traced to their source."""


class RejectLimitError(LedgerbeamError, RuntimeError):
    """More rejected records than the limit of the run allows. Recorded work is not lost."""


class BudgetSpentError(LedgerbeamError, RuntimeError):
    """A budget of paid calls that is spent. Recorded work and stored answers are not lost."""

    exit_status = 3


class ServiceError(LedgerbeamError, RuntimeError):
    """Calls of a service that all fail, for example because of a wrong key. It ends the job."""


class TasksFailedError(LedgerbeamError, RuntimeError):
    """Failed tasks or invalid outputs of a job; raised by `Result.raise_for_failures`."""


class PublicationError(LedgerbeamError, RuntimeError):
    """Metadata of a dataset that cannot be published. The outputs of the job are complete."""


class WorkerDiedError(LedgerbeamError, RuntimeError):
    """A worker process that ended without a report: it was killed, ran out of memory or crashed."""


class LedgerError(LedgerbeamError, RuntimeError):
    """A ledger that cannot be read, or cannot be used for this job."""


class LedgerNotFoundError(LedgerError, FileNotFoundError):
    """No ledger at the given path or URL."""


class LedgerVersionError(LedgerError):
    """A ledger in a format of another version of ledgerbeam, which this version does not read."""


class LedgerDamagedError(LedgerError):
    """A ledger with unreadable LMDB files, rows or objects, or with missing rows."""


class JobMismatchError(LedgerError):
    """The ledger of another job."""


class ScatterIncompleteError(LedgerError):
    """An exchange with an incomplete first stage: its buckets would lack records."""


class NonDeterministicTaskError(LedgerError):
    """A task returned another result when it ran again: the user code depends on more than its input."""


class NegativePendingCountError(LedgerError):
    """A ledger with more finished tasks of a source than planned tasks, which is impossible without a bug or damage."""
