"""`dledger-pipeline find`: messages of an archive, by key, id, place or time; without Spark."""

from __future__ import annotations

import argparse
import base64
import datetime
from itertools import islice
from typing import Final

from rich.console import Group
from rich.text import Text

from broker.admin.archive_search import ArchiveSearch
from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.ids import parse_offset_msg_id
from pipeline.errors import EXIT_FINE, EXIT_FOUND, InconclusiveError, PipelineUsageError
from pipeline.jobs.context import JobContext

name = "find"
summary = "find messages in an archive by key, id, place or time, without Spark"

LIMIT_DEFAULT: Final = 20
BODY_CHARS_MAX: Final = 200
NUMBER_MAX: Final = 2**63 - 1
"""The largest number that a column can hold."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the archive and what is looked for."""
    parser.add_argument("archive", help="folder that `archive` has written")
    parser.add_argument("-t", "--topic", help="the topic; only --id needs none")
    parser.add_argument("-i", "--id", help="offset message id")
    parser.add_argument("--unique-key", metavar="KEY", help="UNIQ_KEY, which its producer makes")
    parser.add_argument("-k", "--key", help="one of KEYS")
    parser.add_argument("-q", "--queue", type=int, metavar="ID", help="in this queue")
    parser.add_argument("-o", "--offset", type=int, metavar="N", help="from this queue offset on")
    parser.add_argument("--last-offset", type=int, metavar="N", help="up to this queue offset")
    for option, text in (("--begin", "stored then or later"), ("--end", "stored then or earlier")):
        parser.add_argument(option, type=_moment, metavar="TIME", help=f"{text}: ISO 8601, or ms")
    parser.add_argument(
        "-c",
        "--limit",
        type=int,
        default=LIMIT_DEFAULT,
        metavar="N",
        help="at most so many (%(default)s)",
    )


def run(context: JobContext) -> int:
    """Search, and print what was found; exit code 1 when nothing was."""
    options = context.options
    if options.limit < 1:
        raise PipelineUsageError(f"--limit {options.limit} must be above 0")
    try:
        from pipeline.archive.search import find_archived
    except ImportError as error:
        raise InconclusiveError(
            f"an archive is read with pyarrow, which is not installed (extra `spark`): {error}"
        ) from error
    rows = list(islice(find_archived(options.archive, _wanted(options)), options.limit + 1))
    found, is_cut = rows[: options.limit], len(rows) > options.limit
    result = {"messages": list(map(_json, found)), "more": is_cut}
    context.report(result, lambda: Group(*map(_text, found), _end(len(found), is_cut=is_cut)))
    return EXIT_FINE if found else EXIT_FOUND


def _wanted(options: argparse.Namespace) -> ArchiveSearch:
    """Read what is looked for.

    Raises:
        PipelineUsageError: it cannot be looked for so.
    """
    message_id = options.id
    if message_id is None and options.topic is None:
        raise PipelineUsageError("a search needs --topic, or --id")
    for name in ("queue", "offset", "last_offset", "begin", "end", "limit"):
        number = getattr(options, name)
        if number is not None and abs(number) >= NUMBER_MAX:
            option = name.replace("_", "-")
            raise PipelineUsageError(f"--{option} {number} is no number that an archive can hold")
    if message_id is not None:
        try:
            parse_offset_msg_id(message_id)
        except MessageIdError as error:
            text = f"--id {message_id[:80]!r}: {error}; a unique key is looked up by --unique-key"
            raise PipelineUsageError(text) from error
    return ArchiveSearch(
        topic=options.topic,
        message_id=message_id,
        unique_key=options.unique_key,
        key=options.key,
        queue_id=options.queue,
        first_offset=options.offset,
        last_offset=options.last_offset,
        begin_ms=options.begin,
        end_ms=options.end,
    )


def _moment(text: str) -> int:
    """Read a time.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither ISO 8601 nor ms") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def _json(row: dict[str, object]) -> dict[str, object]:
    """Return a row as scripts read it: times in ISO 8601, the body in Base64."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime():
            return value.isoformat()
        case _:
            return value


def _text(row: dict[str, object]) -> Text:
    body = row["body"]
    shown = body.decode(errors="replace") if isinstance(body, bytes) else ""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in shown)
    place = f"{row['topic']}, queue {row['queueId']}, offset {row['queueOffset']}"
    return Text.assemble(
        (place, "bold"),
        f"  {row['storeTimestamp']}  {row['msgId']}\n  {_printable(row['properties'])}\n",
        f"  {shown[:BODY_CHARS_MAX]}{'...' if len(shown) > BODY_CHARS_MAX else ''}",
    )


def _printable(value: object) -> str:
    return "".join(each if each.isprintable() else " " for each in str(value or ""))


def _end(count: int, *, is_cut: bool) -> Text:
    more = "; there are more: --limit" if is_cut else ""
    return Text(f"messages: {count}{more}", "bold")
