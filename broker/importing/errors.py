"""What can be wrong with a store that is to be imported, or with the place that it is to go to."""

from __future__ import annotations


class SourceError(Exception):
    """The folder holds no store of RocketMQ that can be read; the text names the file and what is wrong."""


class TargetError(Exception):
    """Nothing can be written there; nothing was written."""


class ImportFailedError(Exception):
    """The import was begun and not finished: the target has no store, unless the text says so."""
