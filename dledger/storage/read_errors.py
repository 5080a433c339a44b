"""What an error of a read says of the bytes that were wanted: that they are gone, or nothing for now.

A member that takes a lack of descriptors or of memory for damage gives up bytes that are whole. No file is known here.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, TypeVar

_DAMAGE: Final = frozenset({errno.EIO, errno.ENOENT, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA})
"""The device or the file system does not give the bytes, or does not have the file."""

_SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The system has no descriptor, or no memory, to read with."""

Given = TypeVar("Given")


def is_damage(error: OSError) -> bool:
    """Return whether a read failed because of what was to be read; False: it may well succeed at another time."""
    return error.errno in _DAMAGE


def is_shortage(error: Exception) -> bool:
    """Return whether a read failed for want of descriptors or memory: that passes, and says nothing of the bytes."""
    return isinstance(error, OSError) and error.errno in _SHORTAGE


def read_again(read: Callable[[], Given]) -> Given:
    """Return what a read gives. One that failed is tried once more if it failed with EIO, which may pass.

    Raises:
        OSError: as `read`, of the second time if there was one.
    """
    try:
        return read()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    return read()
