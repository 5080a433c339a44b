"""`dledger-admin find`: messages of an archive, found and printed as `dledger-admin messages` does those of a group.

The archive is read by whoever `archives` loads; here are the options and the print. Messages are printed as they are
found, and a page ends with the place behind which the next one goes on.
"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Final

from broker.admin.archive_search import ArchiveSearch
from broker.admin.archives import ArchiveReader, add_archive, with_reader
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK, EXIT_UNCHANGED
from broker.admin.message_options import (
    add_body_form,
    add_key_kind,
    add_limit,
    add_span,
    offset_id,
)
from broker.admin.message_search import FoundMessage
from broker.admin.message_view import BodyForm, message_json, message_lines
from broker.admin.options import add_json, add_topic, count
from broker.admin.printing import number, print_json, print_line, print_text
from dledger_mq.client.errors import ClientUsageError

COUNT_DEFAULT: Final = 20
COUNT_MAX: Final = 10_000
_OFFSET_MAX: Final = 2**63 - 2
_QUEUE_MAX: Final = 2**31 - 1


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add the archive, and what is looked for."""
    add_archive(command, required=True)
    add_topic(command, required=False, text="the topic; only --id needs none")
    command.add_argument("-i", "--id", type=offset_id, metavar="ID", help="offset message id")
    command.add_argument(
        "--unique-key", metavar="KEY", help="UNIQ_KEY, which its producer makes and a send returns"
    )
    command.add_argument("-k", "--key", metavar="KEY", help="one of its keys")
    add_key_kind(command)
    for words, most, text in (
        (("-q", "--queue"), _QUEUE_MAX, "in this queue"),
        (("-o", "--offset"), _OFFSET_MAX, "from this queue offset on"),
        (("--last-offset",), _OFFSET_MAX, "up to this queue offset"),
        (("--after",), _OFFSET_MAX, "behind this physical offset: the page before says which"),
    ):
        command.add_argument(*words, type=count(0, most), metavar="N", help=text)
    add_span(command)
    add_limit(command, COUNT_DEFAULT, COUNT_MAX)
    add_body_form(command)
    add_json(command)


def _run(options: argparse.Namespace) -> int:
    """Search, and print; EXIT_UNCHANGED if nothing was found.

    Raises:
        ClientUsageError: neither a topic nor an id is given.
    """
    if options.topic is None and options.id is None:
        raise ClientUsageError("a search needs --topic, or --id")
    return with_reader(lambda reader: _find(reader, options))


def _find(reader: ArchiveReader, options: argparse.Namespace) -> int:
    """Print a page of what is found."""
    form = BodyForm(options.body, options.body_bytes)
    found = reader.find(options.archive, _search(options))
    page = islice(found, options.limit)
    printed: list[dict[str, object]] = []
    shown = 0
    last: int | None = None
    for each in page:
        shown, last = shown + 1, each.record.physical_offset
        if options.json:
            printed.append(message_json(each, form))
        else:
            _print(each, form)
    has_more = next(found, None) is not None
    if options.json:
        print_json({"messages": printed, "more": has_more, "last_physical_offset": last})
    else:
        more = f"; there are more: --after {last}" if has_more else ""
        print_line(f"messages: {number(shown)}{more}", "bold")
    return EXIT_OK if shown else EXIT_UNCHANGED


def _print(found: FoundMessage, form: BodyForm) -> None:
    for line in message_lines(found, form):
        print_text(line)


def _search(options: argparse.Namespace) -> ArchiveSearch:
    """Read what is looked for."""
    keys = {"keys": "key", "unique": "unique_key", "any": "any_key"}
    by_key: dict[str, str] = {} if options.key is None else {keys[options.kind]: options.key}
    if options.unique_key is not None:
        by_key["unique_key"] = options.unique_key
    return ArchiveSearch(
        topic=options.topic,
        message_id=options.id,
        queue_id=options.queue,
        first_offset=options.offset,
        last_offset=options.last_offset,
        begin_ms=options.begin,
        end_ms=options.end,
        after_place=options.after,
        **by_key,
    )


_DETAILS: Final = """\
Messages that retention has taken from the group, in an archive that `dledger-pipeline archive` has written; those that
the group has are found by `messages`. What is given must all hold. They come in the order in which they were stored."""

_FIELDS: Final = """\
messages: [as those of `messages`; broker: null if the archive does not name it], more, last_physical_offset"""

FIND = Command(
    "find",
    "find messages in an archive, by id, key, place or time",
    _add_options,
    _run,
    "find --archive /var/archive -t Orders -k order-17 --begin 2026-01-31T12:00:00",
    details=_DETAILS,
    fields=_FIELDS,
)
