"""The work of the `dledger` command with a group: append, get, status, transfer.

Every command returns its exit code and writes its result to standard output; errors that end it are
raised, and printed by the caller.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio
from rich.console import Console
from rich.table import Table

from dledger.codec.client_rpc import StatusAnswer
from dledger.codec.log_members import LOG_MEMBERS_ATTRIBUTE, LogMembers, decode_log_members
from dledger.errors import DLedgerError, OutcomeUnknownError
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, NodeId
from dledger.runtime.client import Client
from dledger.runtime.visible_text import visible

EXIT_DONE: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = 3

APPENDS_AT_ONCE: Final = 64
"""Appends that `--count` keeps under way."""

TABLE_WIDTH: Final = 120


def print_line(text: str) -> None:
    """Write one line of result."""
    sys.stdout.write(text + "\n")


def print_error(text: str) -> None:
    """Write one line of error."""
    sys.stderr.write(f"dledger: {text}\n")


def exit_code_of(error: DLedgerError) -> int:
    """Return the exit code from which the shell may conclude what happened."""
    return EXIT_REFUSED if error.definite else EXIT_UNKNOWN


@dataclass(slots=True)
class _Tally:
    """The outcomes of appends, counted."""

    done: list[EntryId] = field(default_factory=list)
    refused_count: int = 0
    unknown_count: int = 0
    reason: str = ""

    def add_error(self, error: DLedgerError) -> None:
        """Count one append that was not confirmed."""
        if error.definite:
            self.refused_count += 1
        else:
            self.unknown_count += 1
        self.reason = str(error)

    def exit_code(self) -> int:
        """Return the exit code of the worst outcome: unknown outweighs refused, since somebody must look into it."""
        if self.unknown_count:
            return EXIT_UNKNOWN
        return EXIT_REFUSED if self.refused_count else EXIT_DONE


async def append(
    client: Client, body: bytes, *, count: int, retry_unknown: bool, as_json: bool
) -> int:
    """Append `count` entries with the same body."""
    tally = _Tally()
    left = count

    async def append_some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            try:
                tally.done.append(await client.append(body, retry_unknown=retry_unknown))
            except DLedgerError as error:
                tally.add_error(error)

    async with trio.open_nursery() as nursery:
        for _ in range(min(count, APPENDS_AT_ONCE)):
            nursery.start_soon(append_some)
    tally.done.sort(key=lambda entry_id: entry_id.index)
    if as_json:
        _print_append_json(tally)
    else:
        _print_append(tally)
    return tally.exit_code()


def _print_append(tally: _Tally) -> None:
    done = tally.done
    if len(done) == 1:
        print_line(f"appended entry {done[0].index} (term {done[0].term})")
    elif done:
        print_line(f"appended {len(done)} entries, {done[0].index} to {done[-1].index}")
    if tally.refused_count:
        print_error(f"{tally.refused_count} surely not appended: {tally.reason}")
    if tally.unknown_count:
        print_error(
            f"{tally.unknown_count} of unknown outcome (perhaps appended, perhaps yet to be): {tally.reason}"
        )


def _print_append_json(tally: _Tally) -> None:
    print_line(
        json.dumps(
            {
                "appended": [{"index": each.index, "term": each.term} for each in tally.done],
                "refused": tally.refused_count,
                "unknown": tally.unknown_count,
                "reason": tally.reason,
            }
        )
    )


async def get(
    client: Client, index: int, *, count: int, local: NodeId | None, as_json: bool
) -> int:
    """Print entries."""
    for entry in await client.get(index, count, local=local):
        print_line(json.dumps(_entry_fields(entry)) if as_json else _entry_line(entry))
    return EXIT_DONE


def _entry_line(entry: Entry) -> str:
    text = entry.body.decode("utf-8", "backslashreplace")
    return (
        f"{entry.index} term={entry.term} position={entry.position} "
        f"{entry.kind.name.lower()} {len(entry.body)} bytes: {visible(text)}"
    )


def _entry_fields(entry: Entry) -> dict[str, object]:
    fields: dict[str, object] = {
        "index": entry.index,
        "term": entry.term,
        "position": entry.position,
        "kind": entry.kind.name.lower(),
    }
    try:
        fields["body"] = entry.body.decode("utf-8")
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(entry.body).decode("ascii")
    return fields


async def status(client: Client, *, as_json: bool) -> int:
    """Print every member's view of itself; refused only when none answers."""
    members = await client.status(asks_all=True)
    known = _best_known(members)
    if as_json:
        fields = {"members": _status_fields(client, members), "log": _log_fields(known)}
        print_line(json.dumps(fields))
    else:
        # A pipe has no width; the table needs this much.
        console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
        console.print(_status_table(client, members))
        if known is not None:
            console.print(_log_table(known))
    answers = [each for each in members.values() if isinstance(each, StatusAnswer)]
    return EXIT_DONE if answers else EXIT_REFUSED


def _status_fields(
    client: Client, members: Mapping[NodeId, StatusAnswer | DLedgerError]
) -> list[dict[str, object]]:
    """Return one JSON object per member; the names are an interface for scripts."""
    rows: list[dict[str, object]] = []
    for node_id, seen in members.items():
        row: dict[str, object] = {
            "id": node_id,
            "address": client.address_of(node_id),
            "answers": isinstance(seen, StatusAnswer),
        }
        if isinstance(seen, StatusAnswer):
            row |= {
                "role": seen.role,
                "term": seen.term,
                "leader_id": seen.leader_id or None,
                "is_serving": seen.is_serving,
                "first_index": seen.first_index,
                "first_position": seen.first_position,
                "last_index": seen.last_index,
                "durable_index": seen.durable_index,
                "commit_index": seen.commit_index,
                "applied_index": seen.applied_index,
                "connected": seen.peers_connected,
                "hears": [
                    each.id for each in decode_log_members(seen.attributes).members if each.is_heard
                ],
                "match_indexes": seen.match_indexes,
                "sync_latency_us": seen.sync_latency_us,
                "pending_count": seen.pending_count,
                "attributes": {
                    name: value
                    for name, value in seen.attributes.items()
                    if name != LOG_MEMBERS_ATTRIBUTE
                },
            }
        else:
            row["reason"] = str(seen)
        rows.append(row)
    return rows


def _status_table(client: Client, members: Mapping[NodeId, StatusAnswer | DLedgerError]) -> Table:
    """Build the table for people; warnings that members report about the whole group stand below it, each once."""
    table = Table(title=f"group {client.group}", title_justify="left")
    for name in ("member", "address", "role"):
        table.add_column(name)
    for name in ("term", "first", "last", "commit", "applied", "sync"):
        table.add_column(name, justify="right")
    table.add_column("connected to")
    for node_id, seen in members.items():
        address = client.address_of(node_id)
        if isinstance(seen, StatusAnswer):
            role = seen.role + (" (serving)" if seen.is_serving else "")
            role += " (old store, no vote)" if "store" in seen.attributes else ""
            membership = seen.attributes.get("membership", "").partition(":")[0]
            role += f" ({membership})" if membership else ""
            table.add_row(
                node_id,
                address,
                role,
                str(seen.term),
                str(seen.first_index),
                str(seen.last_index),
                str(seen.commit_index),
                str(seen.applied_index),
                f"{seen.sync_latency_us / 1000:.2f} ms{_disk_word(seen)}",
                " ".join(seen.peers_connected) or "nobody",
                style="bold" if seen.is_serving else None,
            )
        else:
            table.add_row(
                node_id, address, "no answer", "", "", "", "", "", "", str(seen), style="red"
            )
    answers = [seen for seen in members.values() if isinstance(seen, StatusAnswer)]
    names = {seen.attributes.get("incarnation", "") for seen in answers} - {""}
    problems = {seen.attributes.get("majority", "") for seen in answers} - {""}
    captions = [f"restored from backups as: {', '.join(sorted(names))}"] if names else []
    table.caption = "\n".join([*captions, *sorted(problems)]) or None
    return table


@dataclass(frozen=True, slots=True)
class _KnownLog:
    """The members of the log, as one node knows them."""

    node_id: str
    log: LogMembers


def _best_known(members: Mapping[NodeId, StatusAnswer | DLedgerError]) -> _KnownLog | None:
    """Return what the leader knows of who belongs to the log, else who knows the latest change; None: nobody says."""
    answers = [seen for seen in members.values() if isinstance(seen, StatusAnswer)]
    known = [(seen, decode_log_members(seen.attributes)) for seen in answers]
    best = max(
        (each for each in known if each[1].members),
        key=lambda each: (each[0].is_serving, each[1].index, each[0].term),
        default=None,
    )
    return None if best is None else _KnownLog(best[0].node_id, best[1])


def _log_fields(known: _KnownLog | None) -> dict[str, object] | None:
    """Return the log's members as JSON; the names are an interface for scripts."""
    if known is None:
        return None
    return {"as_known_by": known.node_id, **msgspec.to_builtins(known.log)}


def _log_table(known: _KnownLog) -> Table:
    """Build the table of the log's members."""
    by = f"by entry {known.log.index}" if known.log.index else "as the group began"
    table = Table(
        title=f"members of the log {by}, as {known.node_id} knows them", title_justify="left"
    )
    for name in ("member", "address", "kind", "heard"):
        table.add_column(name)
    for each in known.log.members:
        heard, style = ("yes", None) if each.is_heard else ("no", "red")
        table.add_row(each.id, each.address, each.kind, heard, style=style)
    return table


def _disk_word(seen: StatusAnswer) -> str:
    """Return the disk's problem in one word, slow or full; empty when there is none."""
    trouble, _, _ = seen.attributes.get("disk", "").partition(":")
    return f" {trouble}" if trouble else ""


async def transfer(client: Client, target: NodeId | None, *, as_json: bool) -> int:
    """Hand leadership over."""
    try:
        reached = await client.transfer(target)
    except OutcomeUnknownError as error:
        print_error(f"{error}; `dledger status` shows who leads")
        return EXIT_UNKNOWN
    print_line(json.dumps({"leader_id": reached}) if as_json else f"{reached} takes over")
    return EXIT_DONE
