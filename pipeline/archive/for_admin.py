"""What `dledger-admin` asks of an archive (`broker.admin.archives.ArchiveReader`), which loads this module by its name.

Failures are told in the words of the pipeline, and as the kinds of errors that the command knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from broker.admin.archive_search import ArchiveSearch
from broker.admin.archives import (
    ArchiveQuestion,
    ArchiveUnreadableError,
    Progress,
)
from broker.admin.message_search import FoundMessage
from broker.story.tell import MessageStory
from dledger.errors import UsageError
from pipeline.archive.records import record_of
from pipeline.archive.search import find_archived
from pipeline.archive.story import Looked, archived_story
from pipeline.errors import PipelineError, PipelineUsageError


def find(archive: str, search: ArchiveSearch) -> Iterator[FoundMessage]:
    """Yield the messages that are meant, in the order of the log.

    Raises:
        UsageError: there is no archive.
        ArchiveUnreadableError: it cannot be read.
    """
    with _in_words_of_the_admin():
        for row in find_archived(archive, search):
            yield FoundMessage(str(row["brokerName"] or ""), record_of(str(row["topic"]), row))


def tell(
    archive: str, question: ArchiveQuestion, looking: Progress, following: Progress
) -> MessageStory:
    """Tell the story of a message.

    Raises:
        UsageError: there is no archive.
        ArchiveUnreadableError: it cannot be read.
        StoryError: a control record is of a newer version.
    """
    looked = Looked(question.topic, question.begin_ms, question.end_ms)
    with _in_words_of_the_admin():
        return archived_story(
            archive, question.message_id, looked, looking=looking, following=following
        )


@contextmanager
def _in_words_of_the_admin() -> Iterator[None]:
    try:
        yield
    except PipelineUsageError as error:
        raise UsageError(str(error)) from error
    except (PipelineError, OSError) as error:
        raise ArchiveUnreadableError(str(error)) from error
