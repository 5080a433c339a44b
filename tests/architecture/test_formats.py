"""Every format has a version that the code knows, or a reason for none (docs/formats/README.md)."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
import pytest
from crc32c import crc32c

from broker.store import control, saved
from dledger.codec import hard_state, hello, log_start, member_record, snapshot
from dledger.raft.ids import Index, Position, Term
from dledger.state_machine import SnapshotRefusedError
from dledger_mq.message import recall_handle, record
from dledger_mq.message.errors import RecordError
from dledger_mq.remoting import header
from tests.architecture.sources import ROOT

FOLDER = ROOT / "docs/formats"


class Row(NamedTuple):
    """One row of a table of docs/formats/README.md; `link` is relative to docs/formats."""

    link: str
    what: str
    version: str
    otherwise: str


def rows() -> list[Row]:
    text = (FOLDER / "README.md").read_text()
    return [
        Row(*found)
        for found in re.findall(
            r"^\| \[[^]]+\]\(([^)]+)\) \| (.+?) \| (.+) \| (.+) \|$", text, re.M
        )
    ]


def version_in(path: str) -> str:
    """The constant of a module that is not imported here, for that needs the extra `spark`."""
    (found,) = re.findall(r"^VERSION: Final = (\d+)$", (ROOT / path).read_text(), re.MULTILINE)
    return str(found)


VERSIONS: dict[str, tuple[str, set[int] | set[str]]] = {
    "term, vote, changes of members": (
        "version",
        {
            version + noted
            for version in (hard_state._VERSION, hard_state._VERSION_NON_VOTER)
            for noted in (0, hard_state._NOTED)
        },
    ),
    "where a log begins that has lost its beginning": ("version", {log_start.VERSION}),
    "whose a store is, its starts": ("version", {member_record._VERSION}),
    "file of a snapshot": ("version", {snapshot.VERSION, snapshot.VERSION_WITH_PARTS}),
    "part of a snapshot": ("version", {snapshot.PART_VERSION}),
    "a broker's state in it": ("v", {saved.VERSION_BEFORE, saved.VERSION}),
    "control records": ("v", {control.VERSION}),
    "records": ("magic", {"V1", "V2"}),
    "manifests of an archive": ("version", {version_in("pipeline/archive/manifests.py")}),
    "where a streaming query began": ("version", {version_in("pipeline/initial_offsets.py")}),
    "requests and answers": ("version", {header.PROTOCOL_VERSION}),
    "between members, and log clients": ("version", {hello.PROTOCOL_VERSION}),
    "handle of a message with a due time": (recall_handle.HANDLE_VERSION, set()),
}
"""By what is versioned: the name of the field, and the values that this program writes and reads."""


def test_every_page_has_a_row_and_every_row_a_page() -> None:
    linked = {row.link for row in rows()}
    pages = {path.name for path in FOLDER.glob("*.md")} - {"README.md"}
    assert pages - linked == set()
    assert [link for link in linked if not (FOLDER / link).is_file()] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.what)
def test_a_format_has_the_version_that_the_code_has_or_a_reason(row: Row) -> None:
    if row.what not in VERSIONS:
        assert re.match(r"none: .{20,}", row.version)
        return
    name, values = VERSIONS[row.what]
    told = re.match(r"`(\w+)`((?: \w+,)* \w+)?", row.version)
    assert told is not None
    assert told[1] == name
    assert set((told[2] or "").replace(",", " ").split()) == {str(value) for value in values}


def test_the_table_knows_every_version_of_the_code() -> None:
    assert set(VERSIONS) <= {row.what for row in rows()}


def with_version(data: bytes, version: int) -> bytes:
    """A head whose bytes 4 and 5 say a version, and whose last 4 are its CRC32C."""
    changed = data[:4] + version.to_bytes(2, "big") + data[6:-4]
    return changed + crc32c(changed).to_bytes(4, "big")


def test_a_snapshot_of_another_version_is_refused_by_its_number() -> None:
    head = snapshot.encode_head(
        snapshot.SnapshotMeta(Index(1), Term(1), Position(48), chain_crc=7, digest=8)
    )
    assert with_version(head, snapshot.VERSION) == head
    with pytest.raises(snapshot.SnapshotFormatError, match="version 3 is unknown"):
        snapshot.decode_head(with_version(head, 3))


@pytest.mark.parametrize("version", [1, 4])
def test_a_state_of_another_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(SnapshotRefusedError, match=f"version {version}, known are 2 and 3"):
        saved.decode_head(msgspec.msgpack.encode({"v": version, "what": "nobody knows"}))


def test_a_record_with_another_magic_is_refused() -> None:
    data = (91).to_bytes(4, "big") + (record.MAGIC_V2 + 1).to_bytes(4, "big", signed=True)
    with pytest.raises(RecordError, match="magic 0xDAA320AC is not that of a message"):
        record.decode_record(data + bytes(83))
