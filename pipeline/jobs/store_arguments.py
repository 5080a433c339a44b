"""The common arguments of the jobs on stores: how far a log may be read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.scan.plan import CommittedBound
    from pipeline.scan.stores import Store


def add_bound_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine how far the log is committed."""
    parser.add_argument(
        "--up-to",
        metavar="INDEX",
        help="the last entry to read: an index, `snapshot` (what the newest snapshot proves; the default), or "
        "`end` of a store that no node writes to any more",
    )
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT", help="ask the running group how far it is committed"
    )
    parser.add_argument("--group", help="broker name, when the name server knows several")
    parser.add_argument("--node", help="whose store it is: that node's own commit index is enough")
    parser.add_argument("--broker-name", help="the group's name in rows; default: --group")


def store_of(path: str) -> Store:
    """Open a store.

    Raises:
        NotAStoreError: the folder has no log.
        DamagedLogError: the log's first segment is missing.
    """
    from pipeline.scan.stores import Store

    return Store(path)


def last_index_of(options: argparse.Namespace) -> int:
    """Return the last entry of `--store` that may be read; asked before Spark is, whose errors know no exit codes.

    Raises:
        PipelineUsageError, InconclusiveError: as `bound_of`.
        DamagedLogError: segments are missing or damaged.
    """
    from pipeline.scan.plan import plan_scan

    store = store_of(options.store)
    return plan_scan(store, bound_of(options, store)).end.index


def bound_of(options: argparse.Namespace, store: Store) -> CommittedBound:
    """Return how far the log may be read.

    Raises:
        PipelineUsageError: the options contradict each other.
        InconclusiveError: it is not known.
    """
    from pipeline.log_options import committed_bound, read_log_options

    given = {
        "path": store.path,
        "upTo": options.up_to,
        "nameServer": options.namesrv,
        "group": options.group,
        "node": options.node,
    }
    return committed_bound(
        read_log_options({name: text for name, text in given.items() if text is not None}), store
    )
