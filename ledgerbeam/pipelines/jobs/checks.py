"""Options ``--audit`` and ``--on-error``: the audit of finished tasks, and the limit of rejected records."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import NonDeterministicTaskError, RejectLimitError, UsageError
from ledgerbeam.ledger import LedgerStore, RecordCounts
from ledgerbeam.pipelines.console.run_progress import count

OFF = "off"

DEFAULT_SHARE = 0.01

REMEDY = (
    "A result must depend on its record only. Otherwise a restart cannot end with the same bytes. Usual causes: state "
    "that is kept between records (a counter, a cache, a set of seen keys, the previous record, a running mean, a "
    "mutable default), random numbers, the clock, the process ID, the order of a set, the position of an open file, or "
    "the other records of a batch (declare `batch_invariant = False`). Make the function pure: seed random numbers "
    "from the record, and use group or dedup to compare records. Then run again with --on-job-change=restart, or "
    "without this check with --audit off"
)

SHARE_RECORDS = 10_000  # number of records below which a share is checked only after all records are read
_SHOWN_REASONS = 3
_REJECT = re.compile(r"reject(?::(?:([0-9]+)|([0-9]+\.?[0-9]*|\.[0-9]+)%))?")


@dataclass(frozen=True)
class AuditShare:
    """Share of the finished tasks that are audited."""

    share: float = DEFAULT_SHARE  # above 0, at most 1
    is_bounded: bool = True  # whether the audit may use only a part of the job's time, as for the default share


def parse_audit(text: str) -> AuditShare | None:
    """Return None for ``off``, the default for an empty text, and a share for ``5%`` or ``0.05``; else UsageError."""
    if not text:
        return AuditShare()
    if text == OFF:
        return None
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise UsageError(f"--audit {text}: expected a share of the tasks such as 1% or 0.01, up to 100%, or off")
    return AuditShare(number, is_bounded=False)


def audit_text(value: str | float | None) -> str:
    """Return a value of ``--audit`` as the text that a job stores. UsageError if it is invalid."""
    text = "" if value is None else OFF if value is False else str(value)
    parse_audit(text)
    return text


def difference_error(difference: str) -> NonDeterministicTaskError:
    """Return the error for a difference that an audit found, with the usual causes and the remedy."""
    return NonDeterministicTaskError(f"{difference}\n{REMEDY}")


@dataclass(frozen=True)
class RejectLimit:
    """Limit of rejected records, counted over all runs of the ledger."""

    text: str  # text of the option
    most: int | None = None  # maximum number; None for no limit
    percent: float | None = None  # maximum share of the records that were read, in percent; None for no limit

    def check(self, store: LedgerStore, *, ended: bool) -> None:
        """Raise RejectLimitError if the limit is exceeded. `ended`: all records have been read, so a share is final."""
        if self.most is None and self.percent is None:
            return
        records = store.records()
        rejected = sum(records.rejected.values())
        if self._is_exceeded(rejected, records.read, ended=ended):
            raise RejectLimitError(self._message(store.url, rejected, records))

    def _is_exceeded(self, rejected: int, read: int, *, ended: bool) -> bool:
        if self.most is not None:
            return rejected > self.most
        if self.percent is None or (read < SHARE_RECORDS and not ended):
            return False
        return rejected * 100 > self.percent * read

    def _message(self, url: str, rejected: int, records: RecordCounts) -> str:
        ordered = sorted(records.rejected.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(
            f"{printable(without_secrets(reason))} {number:,}" for reason, number in ordered[:_SHOWN_REASONS]
        )
        left = len(ordered) - _SHOWN_REASONS
        more = f" and {count(left, 'more reason')}" if left > 0 else ""
        allowed = f"{self.percent:g} % of the records" if self.most is None else count(self.most, "record")
        return (
            f"ledger {url}: --on-error {self.text}: expected at most {allowed} rejected, found {rejected:,} of "
            f"{records.read:,} read ({reasons}{more}). Recorded work is kept. See the rejected records with "
            f"'ledgerbeam ledger rejects {shlex.quote(url)}'. Then correct the sources or the function, or run the "
            "same command with a higher limit"
        )


def parse_on_error(text: str) -> RejectLimit | None:
    """Return None for ``fail``, and a limit for ``reject``, ``reject:N`` or ``reject:P%``; else UsageError."""
    if text == "fail":
        return None
    found = _REJECT.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--on-error {printable(text)}: expected fail, reject, reject:N such as reject:100, or reject:P% such as "
            "reject:0.1%"
        )
    most, percent = found.groups()
    if percent is not None and not float(percent) <= 100:
        raise UsageError(f"--on-error {text}: expected at most 100 %, found {percent} %")
    return RejectLimit(text, None if most is None else int(most), None if percent is None else float(percent))
