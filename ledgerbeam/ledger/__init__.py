"""The restart ledger: identities of sources and tasks, the counter that tells when a source is complete, and its store.

`open_store` gives a `LedgerStore`; the names below are what transforms and pipelines use. Nothing here knows Beam.
"""

from __future__ import annotations

from ledgerbeam.ledger.lmdb.store import LmdbStore as LmdbStore
from ledgerbeam.ledger.model.counting import Entry as Entry
from ledgerbeam.ledger.model.counting import Terminal as Terminal
from ledgerbeam.ledger.model.counting import entries as entries
from ledgerbeam.ledger.model.counting import fold as fold
from ledgerbeam.ledger.model.counting import is_done as is_done
from ledgerbeam.ledger.model.faults import fault_point as fault_point
from ledgerbeam.ledger.model.identity import ROOT as ROOT
from ledgerbeam.ledger.model.identity import Lineage as Lineage
from ledgerbeam.ledger.model.identity import node_id as node_id
from ledgerbeam.ledger.model.identity import pack_id as pack_id
from ledgerbeam.ledger.model.identity import source_id as source_id
from ledgerbeam.ledger.model.identity import source_ids as source_ids
from ledgerbeam.ledger.model.identity import url_key as url_key
from ledgerbeam.ledger.model.job import LEDGER_FORMAT as LEDGER_FORMAT
from ledgerbeam.ledger.model.job import Job as Job
from ledgerbeam.ledger.model.job import Json as Json
from ledgerbeam.ledger.model.job import OnJobChange as OnJobChange
from ledgerbeam.ledger.model.manifest import DatasetManifest as DatasetManifest
from ledgerbeam.ledger.model.manifest import OutputShard as OutputShard
from ledgerbeam.ledger.model.manifest import dataset_manifest as dataset_manifest
from ledgerbeam.ledger.model.packing import pack_sources as pack_sources
from ledgerbeam.ledger.model.rows import CommitResult as CommitResult
from ledgerbeam.ledger.model.rows import Failure as Failure
from ledgerbeam.ledger.model.rows import FailureRow as FailureRow
from ledgerbeam.ledger.model.rows import HistoryRow as HistoryRow
from ledgerbeam.ledger.model.rows import Leaf as Leaf
from ledgerbeam.ledger.model.rows import Mark as Mark
from ledgerbeam.ledger.model.rows import Output as Output
from ledgerbeam.ledger.model.rows import OutputColumns as OutputColumns
from ledgerbeam.ledger.model.rows import OutputRow as OutputRow
from ledgerbeam.ledger.model.rows import SourceProgress as SourceProgress
from ledgerbeam.ledger.model.rows import SourceRow as SourceRow
from ledgerbeam.ledger.model.rows import Totals as Totals
from ledgerbeam.ledger.model.rows import content_checksum as content_checksum
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS as MAX_ATTEMPTS
from ledgerbeam.ledger.model.store import LedgerSink as LedgerSink
from ledgerbeam.ledger.model.store import LedgerStore as LedgerStore
from ledgerbeam.ledger.model.task import FailedTask as FailedTask
from ledgerbeam.ledger.model.task import NoneTask as NoneTask
from ledgerbeam.ledger.model.task import Source as Source
from ledgerbeam.ledger.model.task import Task as Task
from ledgerbeam.ledger.model.user_code import SAFE_PATH as SAFE_PATH
from ledgerbeam.ledger.model.user_code import code_identity as code_identity
from ledgerbeam.ledger.model.user_code import function_identity as function_identity
from ledgerbeam.ledger.model.user_code import import_function as import_function
from ledgerbeam.ledger.model.user_code import import_object as import_object
from ledgerbeam.ledger.model.user_errors import describe_error as describe_error
from ledgerbeam.ledger.model.user_errors import error_name as error_name
from ledgerbeam.ledger.model.user_errors import failed_by as failed_by
from ledgerbeam.ledger.model.user_errors import ignore_interrupt as ignore_interrupt
from ledgerbeam.ledger.model.user_errors import is_interrupt as is_interrupt
from ledgerbeam.ledger.model.user_errors import message_of as message_of
from ledgerbeam.ledger.places import ledger_exists as ledger_exists
from ledgerbeam.ledger.places import open_store as open_store
from ledgerbeam.ledger.places import sidecar_folder as sidecar_folder
from ledgerbeam.ledger.remote.compaction import Compaction as Compaction
from ledgerbeam.ledger.remote.compaction import compact as compact
from ledgerbeam.ledger.remote.objects import Objects as Objects
from ledgerbeam.ledger.remote.sink import RemoteSink as RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore as RemoteStore
from ledgerbeam.ledger.selection import PendingSource as PendingSource
from ledgerbeam.ledger.selection import open_packs as open_packs
from ledgerbeam.ledger.selection import open_sources as open_sources
from ledgerbeam.ledger.selection import with_progress as with_progress
from ledgerbeam.ledger.worker.inflight import DeadWorker as DeadWorker
from ledgerbeam.ledger.worker.inflight import InflightMarks as InflightMarks
from ledgerbeam.ledger.worker.inflight import dead_marks as dead_marks
from ledgerbeam.ledger.worker.inflight import live_pids as live_pids
from ledgerbeam.ledger.worker.inflight import remove_dead as remove_dead
from ledgerbeam.ledger.worker.run_folders import RunFolder as RunFolder
from ledgerbeam.ledger.worker.run_folders import RunFolders as RunFolders
from ledgerbeam.ledger.worker.worker_errors import leave_error as leave_error
from ledgerbeam.ledger.worker.worker_errors import left_errors as left_errors
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES as MAX_ENTRIES
from ledgerbeam.ledger.worker.writer import LedgerPlace as LedgerPlace
from ledgerbeam.ledger.worker.writer import LedgerWriter as LedgerWriter
from ledgerbeam.ledger.worker.writer import close_shared_writers as close_shared_writers
from ledgerbeam.ledger.worker.writer import shared_writer as shared_writer

__all__ = [
    "LEDGER_FORMAT",
    "MAX_ATTEMPTS",
    "MAX_ENTRIES",
    "ROOT",
    "SAFE_PATH",
    "CommitResult",
    "Compaction",
    "DatasetManifest",
    "DeadWorker",
    "Entry",
    "FailedTask",
    "Failure",
    "FailureRow",
    "HistoryRow",
    "InflightMarks",
    "Job",
    "Json",
    "Leaf",
    "LedgerPlace",
    "LedgerSink",
    "LedgerStore",
    "LedgerWriter",
    "Lineage",
    "LmdbStore",
    "Mark",
    "NoneTask",
    "Objects",
    "OnJobChange",
    "Output",
    "OutputColumns",
    "OutputRow",
    "OutputShard",
    "PendingSource",
    "RemoteSink",
    "RemoteStore",
    "RunFolder",
    "RunFolders",
    "Source",
    "SourceProgress",
    "SourceRow",
    "Task",
    "Terminal",
    "Totals",
    "close_shared_writers",
    "code_identity",
    "compact",
    "content_checksum",
    "dataset_manifest",
    "dead_marks",
    "describe_error",
    "entries",
    "error_name",
    "failed_by",
    "fault_point",
    "fold",
    "function_identity",
    "ignore_interrupt",
    "import_function",
    "import_object",
    "is_done",
    "is_interrupt",
    "leave_error",
    "ledger_exists",
    "left_errors",
    "live_pids",
    "message_of",
    "node_id",
    "open_packs",
    "open_sources",
    "open_store",
    "pack_id",
    "pack_sources",
    "remove_dead",
    "shared_writer",
    "sidecar_folder",
    "source_id",
    "source_ids",
    "url_key",
    "with_progress",
]
