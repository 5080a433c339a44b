"""`dledger-pipeline audit`: do replicas have the same committed log, and the same derived state?

Exit codes: 0 identical; 1 different; 2 nothing can be concluded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from rich.table import Table

from dledger.raft.ids import Index, Position
from pipeline.errors import EXIT_FINE, EXIT_FOUND, PipelineUsageError
from pipeline.jobs.context import JobContext
from pipeline.jobs.store_arguments import add_bound_arguments, bound_of, store_of
from pipeline.jobs.tables import alarming, new_table

if TYPE_CHECKING:
    from pipeline.audit import Finding
    from pipeline.scan.plan import CommittedBound
    from pipeline.scan.stores import Store
    from pipeline.spark.names import Row, SparkSession

name = "audit"
summary = (
    "compare the committed log and the derived state of replicas, and name the first difference"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stores."""
    parser.add_argument(
        "stores", nargs="+", metavar="STORE", help="folders of the replicas' stores"
    )
    add_bound_arguments(parser)


class AuditResult(TypedDict):
    """The result as the command reports it."""

    replicas: dict[str, str]
    index: Index
    knownBy: str
    identical: bool
    findings: list[dict[str, object]]


def run(context: JobContext) -> int:
    """Compare all replicas with each other."""
    from pipeline.audit import common_bound

    if context.options.node is not None:
        raise PipelineUsageError(
            "--node says whose store one is; an audit has several: leave it out"
        )
    stores = named(context.options.stores)
    bounds = {each: bound_of(context.options, store) for each, store in stores.items()}
    committed = common_bound(stores, bounds)
    assert committed.index is not None, "a common bound is an index"
    with context.progress() as progress:
        task = progress.add_task("compare headers and records", total=None)

        def fold(size: int) -> None:
            progress.update(task, description="fold the log, bytes", advance=size)

        findings = audit(context.spark, stores, committed.index, fold)
        findings += live_differences(context.options.namesrv, context.options.group)
    findings.sort(key=lambda each: (each.position < 0, each.position))
    result: AuditResult = {
        "replicas": {each: store.path for each, store in stores.items()},
        "index": committed.index,
        "knownBy": committed.known_by,
        "identical": not findings,
        "findings": [asdict(each) for each in findings],
    }
    context.report(result, lambda: _table(committed, stores, findings))
    return EXIT_FOUND if findings else EXIT_FINE


def named(paths: list[str]) -> dict[str, Store]:
    """Name stores so that they can be distinguished: by their folders', or by their paths.

    Raises:
        PipelineUsageError: fewer than two, or one twice.
    """
    if len({Path(path).resolve() for path in paths}) < max(len(paths), 2):
        raise PipelineUsageError("an audit needs two or more different stores")
    names = [Path(path).resolve().name for path in paths]
    is_clear = len(set(names)) == len(names)
    return {
        each if is_clear else path: store_of(path) for each, path in zip(names, paths, strict=True)
    }


def audit(
    spark: SparkSession,
    stores: Mapping[str, Store],
    last_index: Index,
    progress: Callable[[int], None],
) -> list[Finding]:
    """Compare replicas: headers by their chain, records in two stages, and what each keeps.

    Args:
        spark: the session.
        stores: by the replica's name.
        last_index: the last entry that all have committed.
        progress: called with the bytes folded.
    """
    from pipeline.audit import chain_difference

    parted = chain_difference(stores, last_index)
    findings = [parted] if parted else []
    findings += record_differences(spark, stores, last_index)
    if not findings:
        findings += kept_differences(stores, last_index, progress)
    return findings


def record_differences(
    spark: SparkSession, stores: Mapping[str, Store], last_index: Index
) -> list[Finding]:
    """Damage, and the first record that differs: sums per chunk first, then the first chunk that differs."""
    from pipeline.audit import Finding, file_place, last_lost_index, outliers
    from pipeline.spark.audit_rows import (
        CHUNK_ENTRIES,
        chunk_sums,
        differing_chunks,
        differing_records,
        replica_rows,
    )

    paths = {each: store.path for each, store in stores.items()}
    begin = Index(last_lost_index(stores) + 1)
    sums = chunk_sums(replica_rows(spark, paths, begin, last_index)).cache()
    try:
        findings = [
            Finding(row["replica"], row["damage"]["physicalOffset"], _damage(row["damage"]))
            for row in sums.where("damage is not null").collect()
        ]
        chunks = [row["chunk"] for row in differing_chunks(sums, len(stores)).collect()]
    finally:
        sums.unpersist()
    whole = [chunk for chunk in chunks if chunk >= 0]
    if not whole:
        return findings
    first = max(whole[0] * CHUNK_ENTRIES, begin)
    last = min((whole[0] + 1) * CHUNK_ENTRIES - 1, last_index)
    assert first <= last, f"chunk {whole[0]} differs, entry {last_index} is the last compared"
    for row in differing_records(replica_rows(spark, paths, first, last), len(stores)).take(1):
        odd = outliers({each: row["hashes"].get(each) for each in stores})
        place = file_place(stores[odd.split(", ")[0]], row["physicalOffset"])
        findings.append(
            Finding(
                odd,
                row["physicalOffset"],
                f"entry {row['index']}: topic {row['topic']}, queue {row['queueId']}, offset "
                f"{row['queueOffset']} is another record: {place}",
            )
        )
    return findings


def _damage(place: Row) -> str:
    if place["problem"]:
        return str(place["problem"])
    return (
        f"entry {place['index']}, segment {place['segment']}, physical offset {place['physicalOffset']}: "
        "a checksum is wrong"
    )


def kept_differences(
    stores: Mapping[str, Store], last_index: Index, progress: Callable[[int], None]
) -> list[Finding]:
    """Compare each replica's derived state with one fold of the common log."""
    from pipeline.audit import Finding
    from pipeline.jobs.verify import Findings, compare_kept
    from pipeline.scan.plan import CommittedBound, plan_scan

    whole = [store for store in stores.values() if not store.start.index]
    if not whole:
        return []  # what the replicas keep follows from entries that none of them has
    plan = plan_scan(whole[0], CommittedBound(last_index, "audit"))
    keepers = {store.path: Findings() for store in stores.values()}
    compare_kept(plan, keepers, progress)
    names = {store.path: each for each, store in stores.items()}
    return [
        Finding(names[path], Position(-1), f"derived state: {difference}")
        for path, findings in keepers.items()
        for difference in findings.differences
    ]


def live_differences(name_server: str | None, group: str | None) -> list[Finding]:
    """Compare the digests that running nodes report for the newest mark that all of them have."""
    if name_server is None:
        return []
    from broker.admin.verify import compare
    from pipeline.audit import Finding
    from pipeline.committed import ask_group

    verdict = compare(ask_group(name_server, group))
    return [
        Finding(
            ", ".join(verdict.odd),
            Position(-1),
            f"derived state of the running nodes at entry {verdict.index}: {component} differs "
            f"({', '.join(verdict.digests[component])})",
        )
        for component in verdict.differing
    ]


def _table(
    committed: CommittedBound, stores: Mapping[str, Store], findings: list[Finding]
) -> Table:
    verdict = "differ" if findings else "are identical"
    title = f"{', '.join(stores)} {verdict} up to entry {committed.index} ({committed.known_by})"
    table = new_table(title, "replica", "what")
    for finding in findings:
        table.add_row(alarming(finding.replica), finding.what)
    return table
