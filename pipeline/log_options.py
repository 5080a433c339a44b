"""The options of `format("commitlog")`, checked and typed (docs/pipeline-jobs.md has the table)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from dledger.raft.ids import Index
from pipeline.access import BrokerAccess, read_access
from pipeline.committed import ask_group, committed_by_group
from pipeline.options import OptionReader
from pipeline.scan.batches import RecordSelection, ScanOptions
from pipeline.scan.columns import (
    CONTROL_COLUMNS,
    LABEL_COLUMNS,
    LOG_COLUMNS,
    MESSAGE_COLUMNS,
    METADATA_COLUMNS,
)
from pipeline.scan.plan import (
    SNAPSHOT,
    SPLIT_BYTES,
    CommittedBound,
    ScanPlan,
    given_bound,
    plan_scan,
)
from pipeline.scan.ranges import OnCorrupt
from pipeline.scan.stores import Store

FORMAT: Final = 'format "commitlog"'
MAP_OF_TEXTS: Final = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of reading a store, under their own names."""

    path: str
    from_index: Index
    up_to: str | None
    name_server: str | None
    group: str | None
    node: str | None
    split_bytes: int
    verify_crc: bool
    topics: frozenset[str] | None
    on_corrupt: OnCorrupt
    records: RecordSelection
    broker_name: str | None
    properties_as_map: bool
    include_metadata: bool
    access: BrokerAccess


def read_log_options(given: Mapping[str, str]) -> LogOptions:
    """Read and check the options.

    Raises:
        PipelineUsageError: names the option and what is wrong with it.
    """
    reader = OptionReader(given, FORMAT)
    topics = reader.text("topic")
    options = LogOptions(
        path=reader.required("path"),
        from_index=Index(reader.number("fromIndex", 1, least=1)),
        up_to=reader.text("upTo"),
        name_server=reader.text("nameServer"),
        group=reader.text("group"),
        node=reader.text("node"),
        split_bytes=reader.number("splitBytes", SPLIT_BYTES, least=1),
        verify_crc=reader.boolean("verifyCrc", default=True),
        topics=frozenset(each.strip() for each in topics.split(",")) if topics else None,
        on_corrupt=OnCorrupt(
            reader.choice("onCorrupt", [each.value for each in OnCorrupt], OnCorrupt.FAIL.value)
        ),
        records=RecordSelection(
            reader.choice(
                "records", [each.value for each in RecordSelection], RecordSelection.MESSAGES.value
            )
        ),
        broker_name=reader.text("brokerName"),
        properties_as_map=reader.choice("propertiesAs", ("json", "map"), "json") == "map",
        include_metadata=reader.boolean("includeMetadata", default=False),
        access=read_access(reader),
    )
    if options.up_to is not None and options.name_server is not None:
        raise reader.error("upTo", "and nameServer both say how far to read: give one")
    if options.node is not None and options.name_server is None:
        raise reader.error("node", "needs nameServer, who is asked for it")
    reader.finish()
    return options


def log_columns(options: LogOptions) -> pa.Schema:
    """Return the columns that the options ask for."""
    fields = list(MESSAGE_COLUMNS)
    if options.properties_as_map:
        place = MESSAGE_COLUMNS.get_field_index("properties")
        fields[place] = pa.field("properties", MAP_OF_TEXTS)
    fields += LABEL_COLUMNS
    fields += LOG_COLUMNS
    known = {field.name for field in fields}
    if options.include_metadata:
        fields += [field for field in METADATA_COLUMNS if field.name not in known]
    if options.records is not RecordSelection.MESSAGES:
        fields += CONTROL_COLUMNS
    elif options.on_corrupt is OnCorrupt.MARK:
        fields.append(CONTROL_COLUMNS.field("problem"))
    return pa.schema(fields)


def scan_options(options: LogOptions, schema: pa.Schema) -> ScanOptions:
    """Return the options of each task's scan."""
    return ScanOptions(
        schema,
        options.records,
        options.topics,
        options.on_corrupt,
        options.verify_crc,
        options.broker_name or options.group,
    )


def plan_log(options: LogOptions) -> ScanPlan:
    """Plan the read of a store, up to where it is committed; asks the group if the options say so.

    Raises:
        NotAStoreError: the folder has no log.
        DamagedLogError: segments are missing or damaged, and damage is not to be passed over.
        InconclusiveError: how far the log is committed is not known.
    """
    store = Store(options.path)
    fails = options.on_corrupt is OnCorrupt.FAIL
    return plan_scan(
        store,
        committed_bound(options, store),
        first_index=options.from_index,
        split_bytes=options.split_bytes,
        fails=fails,
    )


def committed_bound(options: LogOptions, store: Store) -> CommittedBound:
    """Return how far the log may be read, by the group or by `upTo`."""
    if options.name_server is not None:
        with options.access.for_all():
            answers = ask_group(options.name_server, options.group)
        return committed_by_group(answers, options.node)
    return given_bound(options.up_to or SNAPSHOT, store)
