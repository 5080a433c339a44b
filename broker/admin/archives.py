"""What commands ask of an archive (`--archive`), and the part that answers, which is loaded when one is asked.

Archives are the pipeline's, which stands above the broker and needs an extra; so the commands know it by its name alone
(docs/adr/0263), and `ArchiveReader` is what it has to be. It must not know what an archive looks like.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from broker.admin.archive_search import ArchiveSearch
from broker.admin.exit_codes import EXIT_UNKNOWN
from broker.admin.message_search import FoundMessage
from broker.admin.printing import print_error
from broker.story.errors import StoryError
from broker.story.tell import MessageStory

READER: Final = "pipeline.archive.for_admin"
"""The module that is an `ArchiveReader`."""

Progress = Callable[[int, int], None]
"""Called now and then with the bytes that were read, and all that there may be."""


class ArchiveUnreadableError(Exception):
    """An archive could not be read; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveQuestion:
    """The message of a story, and where it is looked for.

    Attributes:
        message_id: an offset message id, or a unique key.
        topic: the topic that it was sent to; None: any.
        begin_ms, end_ms: days of the store time outside are left out; ms since 1970; None: no bound.
    """

    message_id: str
    topic: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None


class ArchiveReader(Protocol):
    """Whoever can read archives. Each method raises ArchiveUnreadableError, and UsageError for what is no archive."""

    def find(self, archive: str, search: ArchiveSearch) -> Iterator[FoundMessage]:
        """Yield the messages that are meant, in the order of the log."""

    def tell(
        self, archive: str, question: ArchiveQuestion, looking: Progress, following: Progress
    ) -> MessageStory:
        """Tell the story of a message; may also raise StoryError."""


def add_archive(command: argparse._ActionsContainer, *, required: bool) -> None:
    """Add the folder of an archive."""
    command.add_argument(
        "--archive",
        required=required,
        metavar="ARCHIVE",
        help="folder that `dledger-pipeline archive` has written, or s3://BUCKET/FOLDER",
    )


def with_reader(act: Callable[[ArchiveReader], int]) -> int:
    """Load what reads archives, and act; say in a line what keeps that from being done, and return its exit code.

    Raises:
        UsageError: there is no archive.
    """
    try:
        reader = cast("ArchiveReader", import_module(READER))
    except ImportError as error:
        print_error(
            f"an archive is read with pyarrow and numpy, which are not installed (extra `spark`): {error}"
        )
        return EXIT_UNKNOWN
    try:
        return act(reader)
    except (ArchiveUnreadableError, StoryError) as error:
        print_error(error)
    return EXIT_UNKNOWN
