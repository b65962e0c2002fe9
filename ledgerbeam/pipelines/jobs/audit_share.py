"""The option ``--audit``: the share of finished tasks to audit, and the error of a difference."""

from __future__ import annotations

from dataclasses import dataclass

from ledgerbeam.errors import NonDeterministicTaskError, UsageError

OFF = "off"
DEFAULT_SHARE = 0.01


REMEDY = (
    "A result must depend on its record only, or a restart cannot end with the same bytes. Usual causes: state that is "
    "kept between records (a counter, a cache, a set of seen keys, the previous record, a running mean, a mutable "
    "default), random numbers, the clock, the process ID, the order of a set, the position of an open file, or the "
    "other records of a batch (declare `batch_invariant = False`). Make the function pure (seed random numbers from "
    "the record; use group or dedup for what concerns several records), then run again with --on-job-change=restart; "
    "--audit off runs without this check"
)


@dataclass(frozen=True)
class AuditShare:
    """Share of the finished tasks that are audited.

    Attributes:
        share: Above 0, at most 1.
        is_bounded: Whether the audit ends once it has taken its part of the job's time: the default share.
    """

    share: float = DEFAULT_SHARE
    is_bounded: bool = True


def parse_audit(text: str) -> AuditShare | None:
    """Read ``off`` as None, the empty text as the default, and ``5%`` or ``0.05`` as a share.

    Raises:
        UsageError: The text has another form.
    """
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
    """Return a value of the option as the text that a job keeps. Raises UsageError."""
    text = "" if value is None else OFF if value is False else str(value)
    parse_audit(text)
    return text


def difference_error(difference: str) -> NonDeterministicTaskError:
    """Return the error of a difference that an audit found."""
    return NonDeterministicTaskError(f"{difference}\n{REMEDY}")
