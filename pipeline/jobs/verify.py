"""`dledger-pipeline verify`: what a node keeps against what follows from its log.

Exit codes: 0 equal; 1 different, or the log is damaged; 2 nothing to compare with, or it is not known how far.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypedDict

from rich.table import Table

from dledger.raft.ids import Index, Position
from pipeline.errors import EXIT_FINE, EXIT_FOUND, EXIT_INCONCLUSIVE
from pipeline.jobs.context import JobContext, counted
from pipeline.jobs.store_arguments import add_bound_arguments, bound_of, store_of
from pipeline.jobs.tables import alarming, new_table

if TYPE_CHECKING:
    from broker.store.state import BrokerState
    from pipeline.derived.compare import Difference
    from pipeline.scan.plan import ScanPlan
    from pipeline.spark.names import SparkSession

name = "verify"
summary = "compare consume queues, index, offsets and transactions that a node keeps with its log"


class VerifyResult(TypedDict):
    """The result as the command reports it."""

    store: str
    index: Index
    knownBy: str
    compared: list[str]
    differences: list[dict[str, object]]


@dataclass
class Findings:
    """The comparisons that were made, and the differences found.

    Attributes:
        compared: in words, each thing that the log was compared with.
        differences: the first of each component and place.
    """

    compared: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the store."""
    parser.add_argument("store", help="folder of a node's store")
    add_bound_arguments(parser)
    parser.add_argument(
        "--local",
        action="store_true",
        help="without Spark: consume queues are not computed a second time",
    )


def run(context: JobContext) -> int:
    """Fold the log, and compare on the way and at the end."""
    from pipeline.scan.plan import plan_scan

    options = context.options
    store = store_of(options.store)
    plan = plan_scan(store, bound_of(options, store))
    spark = None if options.local else context.spark  # without Java nothing is begun
    with context.progress() as progress:
        task = progress.add_task("fold the log, bytes", total=plan.size_bytes)
        then = "compare with what is kept"
        findings = verify(plan, counted(progress, task, plan.size_bytes, then), spark)
    result: VerifyResult = {
        "store": store.path,
        "index": plan.end.index,
        "knownBy": plan.committed.known_by,
        "compared": findings.compared,
        "differences": [asdict(each) for each in findings.differences],
    }
    context.report(result, lambda: _table(result, findings))
    if findings.differences:
        return EXIT_FOUND
    return EXIT_FINE if findings.compared else EXIT_INCONCLUSIVE


def verify(
    plan: ScanPlan, progress: Callable[[int], None], spark: SparkSession | None = None
) -> Findings:
    """Compare everything that a store keeps with the fold of its log.

    Args:
        plan: the log, from its first entry.
        progress: called with the bytes folded.
        spark: a session, to compute consume queues a second time; None: that is left out.

    Raises:
        DamagedLogError: the log cannot be folded.
        DamagedSnapshotError: a snapshot is damaged.
    """
    findings = Findings()
    compare_kept(plan, {plan.path: findings}, progress, spark)
    return findings


def compare_kept(
    plan: ScanPlan,
    keepers: Mapping[str, Findings],
    progress: Callable[[int], None],
    spark: SparkSession | None = None,
) -> None:
    """Compare what one or more nodes keep with one fold of the log that they share.

    Args:
        plan: the log, from its first entry.
        keepers: by store, what is filled in.
        progress: called with the bytes folded.
        spark: as for `verify`; what Spark finds is of the plan's own store.
    """
    from pipeline.derived.fold import fold, new_state
    from pipeline.derived.kept import snapshots_of

    snapshots = [
        (int(meta.index), path, store) for store in keepers for path, meta in snapshots_of(store)
    ]
    with TemporaryDirectory(prefix="dledger-verify-") as folder:
        state = new_state(Path(folder))
        for index in fold(plan, state, [each[0] for each in snapshots], progress):
            for at, path, store in snapshots:
                if at == index:
                    _compare_snapshot(path, state, keepers[store])
        applied, end = state.applied_index, plan.end.index
        assert applied == end, f"{applied} entries of {end} are compared with"
        for store, findings in keepers.items():
            _compare_marks(state, findings)
            _compare_files(
                store, folder, end_position=plan.end.position, state=state, findings=findings
            )
        if spark is not None:
            _compare_with_spark(spark, plan, state, keepers[plan.path])


def _compare_snapshot(path: Path, state: BrokerState, findings: Findings) -> None:
    from pipeline.derived.compare import state_differences
    from pipeline.derived.kept import load_snapshot

    kept = load_snapshot(path)
    if kept is not None:  # a running node keeps the newest ones only
        findings.compared.append(f"snapshot {path.name}: {len(state.digests())} components")
        findings.differences += state_differences(state, kept)


def _compare_marks(state: BrokerState, findings: Findings) -> None:
    """Compare with the digests that leaders wrote into the log itself."""
    from pipeline.derived.compare import Difference

    marks = state.marks
    if marks.compared_index:
        findings.compared.append(f"digests in the log, up to entry {marks.compared_index}")
    findings.differences += [
        Difference(
            each.component,
            f"digest at entry {each.index}",
            f"{each.own:08x}",
            f"{each.leaders:08x}",
        )
        for each in marks.divergences
    ]


def _compare_files(
    store: str, rebuilt: str, *, end_position: Position, state: BrokerState, findings: Findings
) -> None:
    from pipeline.derived.kept import index_file_differences, queue_file_differences

    for what, (differences, equal_bytes) in (
        ("consume queue files", queue_file_differences(store, state, end_position)),
        ("key index files", index_file_differences(store, rebuilt)),
    ):
        if differences or equal_bytes:
            findings.compared.append(f"{what}: {equal_bytes} bytes are equal")
        findings.differences += differences


def _compare_with_spark(
    spark: SparkSession, plan: ScanPlan, state: BrokerState, findings: Findings
) -> None:
    from pipeline.derived.compare import Difference
    from pipeline.spark.consume_queues import checked_queues

    differing = checked_queues(spark, plan.path, plan.end.index, state)
    findings.compared.append(f"{len(state.queues.by_key)} consume queues computed by Spark")
    findings.differences += [Difference("queues", text, "one", "another") for text in differing]


def _table(result: VerifyResult, findings: Findings) -> Table:
    """Build the result: the differences if there are any, else what was compared."""
    verdict = "differs from" if findings.differences else "is what follows from"
    if not findings.compared:
        verdict = "has nothing to compare with"
    table = new_table(
        f"{result['store']} {verdict} its log up to entry {result['index']} ({result['knownBy']})",
        "compared with" if not findings.differences else "what",
    )
    for text in findings.compared:
        table.add_row(text)
    for difference in findings.differences:
        table.add_row(alarming(difference))
    return table
