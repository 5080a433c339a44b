"""The store folder that commands about a log take, and what keeps them from reading it.

It must not know what is read of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from broker.admin.exit_codes import EXIT_UNKNOWN
from broker.admin.printing import print_error
from broker.story.errors import StoryError
from broker.story.places import StorePlaces
from dledger.errors import CorruptionError

HOW_READ = """\
STORE is the folder of a node's store (--store of its broker), or a copy of it. It is only read, also beside a running
node, whose log may grow meanwhile: what is read then is the log of that node, whose last entries may yet not be
committed."""


def add_store(command: argparse._ActionsContainer, *, required: bool = True) -> None:
    """Add the folder of a store."""
    command.add_argument(
        "-s",
        "--store",
        type=Path,
        required=required,
        metavar="STORE",
        help="folder of a node's store, or a copy of it",
    )


def with_store(folder: Path, act: Callable[[StorePlaces], int]) -> int:
    """Open a store for reading, and act; say in a line what keeps that from being done, and return its exit code.

    Raises:
        UsageError: the folder is no store.
    """
    try:
        return act(StorePlaces(folder))
    except (StoryError, CorruptionError) as error:
        print_error(error)
    except OSError as error:
        print_error(f"{folder} cannot be read: {error}")
    return EXIT_UNKNOWN
