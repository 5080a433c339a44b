"""`dledger-admin why`: the story of one message from the log alone, and why it cannot be consumed, where it cannot be.

The story is told by `broker/story`, that of an archive by whoever `archives` loads; here are the options and the print.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from broker.admin.archives import ArchiveQuestion, ArchiveReader, add_archive, with_reader
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK, EXIT_UNCHANGED
from broker.admin.options import add_json, add_topic, moment
from broker.admin.printing import at, number, print_json, print_text, shown
from broker.admin.progress import progress_bars
from broker.admin.store_option import HOW_READ, add_store, with_store
from broker.story.places import StorePlaces
from broker.story.steps import StoryStep
from broker.story.tell import MessageStory, tell
from broker.story.verdict import CopyStanding, GroupStand
from dledger_mq.client.errors import ClientUsageError

_LINE_CHARS_MAX: Final = 2000


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add the message, and the store or the archive that tells of it."""
    command.add_argument(
        "message_id",
        metavar="MSGID",
        help="its unique key (UNIQ_KEY), which a send returns, or the offset message id of any of its records",
    )
    where = command.add_mutually_exclusive_group(required=True)
    add_store(where, required=False)
    add_archive(where, required=False)
    text = "of an archive: the topic that it was sent to; others, but retries and dead letters, are not read"
    add_topic(command, required=False, text=text)
    for words, text in (
        (("-b", "--begin"), "of an archive: only days from this time on are read"),
        (("-e", "--end"), "of an archive: only days up to this time are read"),
    ):
        command.add_argument(*words, type=moment, metavar="TIME", help=text)
    add_json(command)


def _run(options: argparse.Namespace) -> int:
    """Tell the story; EXIT_UNCHANGED if there is none.

    Raises:
        ClientUsageError: a topic or a time is given for a store.
    """
    if options.archive is not None:
        return with_reader(lambda reader: _from_archive(reader, options))
    if (options.topic, options.begin, options.end) != (None, None, None):
        raise ClientUsageError("--topic, --begin and --end are for archives: a log is read whole")

    def act(places: StorePlaces) -> int:
        with progress_bars("looking", "folding", is_shown=not options.json) as (looking, folding):
            story = tell(places, options.message_id, looking, folding)
        return _print(story, options, store=str(places.path))

    return with_store(options.store, act)


def _from_archive(reader: ArchiveReader, options: argparse.Namespace) -> int:
    question = ArchiveQuestion(
        message_id=options.message_id,
        topic=options.topic,
        begin_ms=options.begin,
        end_ms=options.end,
    )
    with progress_bars("looking", "following", is_shown=not options.json) as (looking, following):
        story = reader.tell(options.archive, question, looking, following)
    return _print(story, options, archive=options.archive)


def _print(
    story: MessageStory,
    options: argparse.Namespace,
    *,
    store: str | None = None,
    archive: str | None = None,
) -> int:
    """Print a story of a store or of an archive; EXIT_UNCHANGED if there is none."""
    if options.json:
        print_json(story_json(story, store, archive))
    else:
        for line in story_lines(story, store or archive or ""):
            print_text(shown(line, _LINE_CHARS_MAX))
    return EXIT_OK if story.found.copies else EXIT_UNCHANGED


def story_json(
    story: MessageStory, store: str | None, archive: str | None = None
) -> dict[str, object]:
    """Return a story as scripts read it."""
    found = story.found
    return {
        "asked": found.asked,
        "store": store,
        "archive": archive,
        "is_visible": story.is_visible,
        "verdict": story.verdict,
        "records": [each.as_json() for each in story.standings],
        "steps": [each.as_json(found.proven_index) for each in story.steps],
        "first_entry": found.begin.index + 1,
        "last_entry": found.end.index,
        "proven_entry": found.proven_index,
        "state_from_entry": story.state_from,
        "is_cut": story.is_cut,
        "log_end_problem": found.problem or None,
    }


def story_lines(story: MessageStory, where: str) -> Iterator[str]:
    """Yield a story line by line; `where` is the store, or the archive."""
    found = story.found
    yield f"{found.asked} in {where}, entries {number(found.begin.index + 1)} to {number(found.end.index)}"
    for step in story.steps:
        yield from _step_lines(step, found.proven_index)
    yield story.verdict
    for standing in story.standings:
        yield from _standing_lines(standing)
    if any(step.index > found.proven_index for step in story.steps):
        yield (
            f"?: nothing in this store proves entries after {number(found.proven_index)} to be committed; the group "
            "may have replaced them"
        )
    if not all(step.is_sure for step in story.steps):
        gone = "is not in an archive" if story.unknown else "is gone"
        yield f"~: as asked for; the state before that entry {gone}, so it may have had no effect"
    if story.is_cut:
        yield "there is more than is told here"
    if found.problem:
        yield f"the log ends there: {found.problem}"


def _step_lines(step: StoryStep, proven_index: int) -> Iterator[str]:
    marks = ("" if step.is_sure else "~") + ("" if step.index <= proven_index else "?")
    yield f"  {at(step.at_ms)}  entry {step.index}, term {step.term}{f' {marks}' if marks else ''}"
    yield f"    {step.event.value.replace('_', ' ')}: {step.text}"


def _standing_lines(standing: CopyStanding) -> Iterator[str]:
    """Yield who has passed a record that is visible, and why another one is not, or what else is known of it."""
    message = standing.copy.message
    place = f"{standing.copy.role.value} at {standing.copy.place}"
    if standing.is_visible is None:
        yield f"  {place}, id {standing.copy.message_id}: {standing.reason}"
        return
    if not standing.is_visible:
        yield f"  {place}: {standing.reason}"
        return
    where = f"queue {message.queue_id} of {message.topic}, offset {message.queue_offset}"
    yield f"  {place}, id {standing.copy.message_id}: {where}"
    if not standing.groups:
        yield "    no group has an offset in this topic"
    for each in standing.groups:
        yield f"    {_group_text(each)}"


def _group_text(stand: GroupStand) -> str:
    passed = "has passed it" if stand.is_passed else "stands before it"
    flight = "" if stand.until_ms is None else f", has it in flight until {at(stand.until_ms)}"
    lock = f", queue locked by {stand.locked_by}" if stand.locked_by else ""
    return f"{stand.group} {passed} (offset {stand.offset}){flight}{lock}"


_FIELDS: Final = """\
asked, store, archive (one of both is null), is_visible (null: not known), verdict,
records: [role, topic, queue, offset, physical_offset, message_id, size_bytes, entry, term, is_visible, is_ended,
  reason, groups: [group, offset, is_passed, in_flight_until_ms, popped_times, locked_by]],
steps: [event, entry, term, at_ms, physical_offset, group, text, facts: {...}, is_sure, is_proven],
first_entry, last_entry, proven_entry, state_from_entry, is_cut, log_end_problem"""

_OF_AN_ARCHIVE: Final = """\
ARCHIVE is one that `dledger-pipeline archive` has written. It holds the records of the log, not the state of a group:
every step is told as it was asked for, and whether the message can be consumed is not known. With an offset message id
little of it is read; with a unique key give the topic or the time."""

WHY = Command(
    "why",
    "the story of one message from a store's log or an archive alone, and why it is not visible",
    _add_options,
    _run,
    "why 7F0000010B9A18B4AAC216A7A8A60000 --store data/n0",
    details=f"{HOW_READ}\n\n{_OF_AN_ARCHIVE}",
    fields=_FIELDS,
)
