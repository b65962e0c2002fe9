"""The restart ledger: identities of sources and tasks, the counter that tells when a source is complete, and its store.

`open_store` gives a `LedgerStore`; the names below are what transforms and pipelines use. Nothing here knows Beam.
"""

from __future__ import annotations

from ledgerbeam.ledger.compaction import Compaction as Compaction
from ledgerbeam.ledger.compaction import compact as compact
from ledgerbeam.ledger.counting import Entry as Entry
from ledgerbeam.ledger.counting import Terminal as Terminal
from ledgerbeam.ledger.counting import entries as entries
from ledgerbeam.ledger.counting import fold as fold
from ledgerbeam.ledger.counting import is_done as is_done
from ledgerbeam.ledger.faults import reach as reach
from ledgerbeam.ledger.identity import ROOT as ROOT
from ledgerbeam.ledger.identity import Lineage as Lineage
from ledgerbeam.ledger.identity import node_id as node_id
from ledgerbeam.ledger.identity import pack_id as pack_id
from ledgerbeam.ledger.identity import source_id as source_id
from ledgerbeam.ledger.identity import source_ids as source_ids
from ledgerbeam.ledger.identity import url_key as url_key
from ledgerbeam.ledger.inflight import DeadWorker as DeadWorker
from ledgerbeam.ledger.inflight import InflightMarks as InflightMarks
from ledgerbeam.ledger.inflight import dead_marks as dead_marks
from ledgerbeam.ledger.inflight import live_pids as live_pids
from ledgerbeam.ledger.inflight import remove_dead as remove_dead
from ledgerbeam.ledger.job import LEDGER_FORMAT as LEDGER_FORMAT
from ledgerbeam.ledger.job import Job as Job
from ledgerbeam.ledger.job import Json as Json
from ledgerbeam.ledger.job import OnJobChange as OnJobChange
from ledgerbeam.ledger.lmdb_store import LmdbStore as LmdbStore
from ledgerbeam.ledger.manifest import DatasetManifest as DatasetManifest
from ledgerbeam.ledger.manifest import Shard as Shard
from ledgerbeam.ledger.manifest import dataset_manifest as dataset_manifest
from ledgerbeam.ledger.objects import Objects as Objects
from ledgerbeam.ledger.opening import ledger_exists as ledger_exists
from ledgerbeam.ledger.opening import open_store as open_store
from ledgerbeam.ledger.opening import sidecar_folder as sidecar_folder
from ledgerbeam.ledger.packing import pack_sources as pack_sources
from ledgerbeam.ledger.remote_sink import RemoteSink as RemoteSink
from ledgerbeam.ledger.remote_store import RemoteStore as RemoteStore
from ledgerbeam.ledger.run_folders import RunFolder as RunFolder
from ledgerbeam.ledger.run_folders import RunFolders as RunFolders
from ledgerbeam.ledger.selection import OpenSource as OpenSource
from ledgerbeam.ledger.selection import open_packs as open_packs
from ledgerbeam.ledger.selection import open_sources as open_sources
from ledgerbeam.ledger.selection import with_progress as with_progress
from ledgerbeam.ledger.store import MAX_ATTEMPTS as MAX_ATTEMPTS
from ledgerbeam.ledger.store import CommitResult as CommitResult
from ledgerbeam.ledger.store import Failure as Failure
from ledgerbeam.ledger.store import FailureRow as FailureRow
from ledgerbeam.ledger.store import HistoryRow as HistoryRow
from ledgerbeam.ledger.store import Leaf as Leaf
from ledgerbeam.ledger.store import LedgerSink as LedgerSink
from ledgerbeam.ledger.store import LedgerStore as LedgerStore
from ledgerbeam.ledger.store import Mark as Mark
from ledgerbeam.ledger.store import Output as Output
from ledgerbeam.ledger.store import OutputColumns as OutputColumns
from ledgerbeam.ledger.store import OutputRow as OutputRow
from ledgerbeam.ledger.store import Progress as Progress
from ledgerbeam.ledger.store import SourceRow as SourceRow
from ledgerbeam.ledger.store import Totals as Totals
from ledgerbeam.ledger.store import content_checksum as content_checksum
from ledgerbeam.ledger.task import FailedTask as FailedTask
from ledgerbeam.ledger.task import NoneTask as NoneTask
from ledgerbeam.ledger.task import Source as Source
from ledgerbeam.ledger.task import Task as Task
from ledgerbeam.ledger.user_code import SAFE_PATH as SAFE_PATH
from ledgerbeam.ledger.user_code import code_identity as code_identity
from ledgerbeam.ledger.user_code import function_identity as function_identity
from ledgerbeam.ledger.user_code import import_function as import_function
from ledgerbeam.ledger.user_code import import_object as import_object
from ledgerbeam.ledger.user_errors import describe_error as describe_error
from ledgerbeam.ledger.user_errors import error_name as error_name
from ledgerbeam.ledger.user_errors import failed_by as failed_by
from ledgerbeam.ledger.user_errors import ignore_interrupt as ignore_interrupt
from ledgerbeam.ledger.user_errors import is_interrupt as is_interrupt
from ledgerbeam.ledger.user_errors import message_of as message_of
from ledgerbeam.ledger.worker_errors import leave_error as leave_error
from ledgerbeam.ledger.worker_errors import left_errors as left_errors
from ledgerbeam.ledger.writer import MAX_ENTRIES as MAX_ENTRIES
from ledgerbeam.ledger.writer import LedgerPlace as LedgerPlace
from ledgerbeam.ledger.writer import LedgerWriter as LedgerWriter
from ledgerbeam.ledger.writer import close_shared_writers as close_shared_writers
from ledgerbeam.ledger.writer import shared_writer as shared_writer

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
    "OpenSource",
    "Output",
    "OutputColumns",
    "OutputRow",
    "Progress",
    "RemoteSink",
    "RemoteStore",
    "RunFolder",
    "RunFolders",
    "Shard",
    "Source",
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
    "reach",
    "remove_dead",
    "shared_writer",
    "sidecar_folder",
    "source_id",
    "source_ids",
    "url_key",
    "with_progress",
]
