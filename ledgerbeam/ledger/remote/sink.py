"""Recording in a remote ledger by workers: a sink writes segments and reads nothing, so it needs no sidecar."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.job import job_changed_error
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf
from ledgerbeam.ledger.remote.controls import CONTROLS, control_number, decode_control, number_gap_error
from ledgerbeam.ledger.remote.replay import segment_name
from ledgerbeam.ledger.remote.segment import Objects, Segment, create_own, encode_segment
from ledgerbeam.ledger.remote.store import writer_name

CHECK_SECONDS = 10.0  # interval at which a worker checks whether another job has opened the ledger, in seconds


class RemoteSink:
    """Records in a remote ledger, one segment for each commit. Thread-safe; picklable; can be used after a fork.

    Contradictions with the ledger are detected when the segment is folded, not here. The source then stays open, with
    a failure that gives the reason.
    """

    def __init__(self, objects: Objects, *, job: str | None = None, run: str = "") -> None:
        """Create a sink without a request. Without a run, each commit looks up the newest run in the store."""
        self._objects = objects
        self._job = job
        self._run = run
        self._forget_parent()

    def _forget_parent(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._writer = writer_name()
        self._sequence = 0
        self._seen = int(self._run or 0)
        self._checked = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RemoteSink, job=self._job, run=self._run), (self._objects,)

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        """Create a segment of finished and failed tasks. The result has no completed sources: they are not known here.

        Raises:
            JobMismatchError: Another job has opened the ledger, as of a check at most `CHECK_SECONDS` ago. Nothing was
                recorded.
            LedgerDamagedError: The name of the segment holds other content, or the control objects are damaged.
                Nothing was recorded; the next commit takes another name.
            StorageError: The store does not answer. The segment was recorded or not; it may be recorded again.
        """
        started = time.monotonic()
        if self._pid != os.getpid():
            self._forget_parent()
        with self._lock:
            # Without a run, the sink records for the newest run, which may have started since: pipelines can run one
            # after the other in one process.
            if not self._run or not self._checked or time.monotonic() - self._checked > CHECK_SECONDS:
                self._check_job()
            number = int(self._run or self._seen)
            segment = Segment(number, round(time.time(), 6), self._job, leaves=leaves, failures=failures)
            self._sequence += 1
            name = segment_name(segment, number, self._writer, self._sequence)
            data = encode_segment(segment)
        fault_point("flush.before_commit")
        create_own(self._objects, name, data)
        return CommitResult([], len(leaves), time.monotonic() - started)

    def close(self) -> None:
        """Do nothing: a sink holds nothing open."""

    def _check_job(self) -> None:
        news = self._new_controls()
        for start in range(0, len(news), 64):
            page = [name for _, name in news[start : start + 64]]
            for name, data in zip(page, self._objects.read(page), strict=True):
                control = decode_control(data or b"{}", f"{self._objects.url}/{name}")
                if control.job is not None and self._job is not None and control.job.fingerprint != self._job:
                    raise job_changed_error(self._objects.url, self._job, control.job.fingerprint)
        self._seen = max([self._seen, *(number for number, _ in news)])
        self._checked = time.monotonic()

    def _new_controls(self) -> list[tuple[int, str]]:
        """Return the control objects created since the last check, by number, without gaps."""
        for is_last in (False, True):
            numbers = ((control_number(name) or 0, name) for name in self._objects.names(CONTROLS))
            news = sorted((number, name) for number, name in numbers if number > self._seen)
            before = [self._seen, *(number for number, _ in news)]
            gap = next((place for place, (number, _) in enumerate(news) if number > before[place] + 1), None)
            if gap is None:
                break
            if is_last:  # the first listing may have passed the name of a control object that was created meanwhile
                number, name = news[gap]
                raise number_gap_error(f"{self._objects.url}/{name}", number, before[gap])
        return news
