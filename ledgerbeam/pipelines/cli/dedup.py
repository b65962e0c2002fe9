"""``ledgerbeam dedup``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.exchange_arguments import add_exchange

SUMMARY = "write all records without duplicates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    output = add_exchange(parser, moves_records=False)
    output.add_argument(
        "--mark",
        action="store_true",
        help="write which records are duplicates in place of all others: source and number of each, with "
        "--near also of the one that stays, as JSON lines",
    )
    keys = parser.add_argument_group("keys")
    keys.add_argument(
        "--by",
        metavar="KEY",
        help="name of a field, a.b for a value inside of another, several with commas; or module:function of a record "
        "that returns the key. A record whose key is null stays",
    )
    keys.add_argument("--content", action="store_true", help="all of a record is its key")
    keys.add_argument(
        "--near",
        metavar="FIELD",
        help="the text by which records are near, if their signatures share a band: the name of a field, or "
        "module:function of a record; of each cluster one stays",
    )
    keys.add_argument(
        "--minhash", metavar="BANDSxROWS", help="of --near: bands of a signature and hashes of a band (default: 14x8)"
    )
    keys.add_argument("--ngram", metavar="N", help="of --near: words of an n-gram (default: 5)")
    keys.add_argument(
        "--threshold",
        metavar="SHARE",
        help="of --near, in place of --minhash: the share of n-grams in common from which on texts are to be near; "
        "chooses the best bands and rows of at most 128 hashes",
    )
    keys.add_argument(
        "--verify",
        action="store_true",
        help="of --near, with --threshold: compare the n-grams of texts that share a band, which are near only if they "
        "have at least this share of them in common; --minhash may be given as well",
    )
    keys.add_argument(
        "--against",
        metavar="LEDGER",
        action="append",
        help="of --near: the ledger of an earlier one; what is near a record there goes, too. Its signatures are read, "
        "with --verify also its records that share a band with others; may be repeated",
    )
    keys.add_argument(
        "--prefer",
        metavar="KEY",
        help="of the records of a key or a cluster that with the greatest value of this field, or of module:function, "
        "stays (default: the first)",
    )
    keys.add_argument(
        "--cluster-bytes",
        metavar="BYTES",
        help="of --near: pairs that one process clusters; more are clustered in rounds, with the same result (default: "
        "1G)",
    )


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Leave duplicates out. Returns the exit status."""
    from ledgerbeam.pipelines.calls.dedup import dedup as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
