"""The configuration values that name servers keep for tools: namespace, key, value, all texts.

One name server alone keeps them in a file (here); several keep them consistent between each other
(replicated_kv.py). Both are bounded, and both answer a change only once it is durable. It must not know what
the values mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

import trio

from broker.namesrv.errors import KvLimitError, KvUnavailableError, NameServerConfigError
from dledger import DiskFullError
from dledger.storage.api import Disk
from dledger.storage.whole_file import replace_whole, settle_whole

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

ENTRIES_MAX: Final = 100_000
KEY_CHARS_MAX: Final = 1024
VALUE_CHARS_MAX: Final = 64 * 1024
NAMESPACE_CHARS_MAX: Final = 2 * 1024 * 1024
"""Of keys and values: a namespace is listed in one frame, where a character takes six bytes at most. That of the order
configuration is also in the answer to each registration."""

TOTAL_CHARS_MAX: Final = 16 * 1024 * 1024
"""Each change writes all of them."""

_FILE_NAME: Final = "kvConfig.json"
_TABLE_MEMBER: Final = "configTable"


class KvStore(Protocol):
    """Reads are local and at once; changes wait until they are durable."""

    @property
    def is_ready(self) -> bool:
        """True while values can change."""

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, or None."""

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace; None when it has none."""

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            KvLimitError: over a bound.
            KvUnavailableError: not made, or unknown whether made.
        """

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value; one that is not there is no error.

        Raises:
            KvUnavailableError: not made, or unknown whether made.
        """

    async def close(self) -> None:
        """Release the threads and files of the store."""


def check_limits(
    namespace: str, key: str, value: str, kept: Iterable[tuple[str, str, str]]
) -> None:
    """Refuse what is over the bounds.

    Args:
        namespace: of the value that is to be set.
        key: of it.
        value: itself.
        kept: all values with their namespaces and keys.

    Raises:
        KvLimitError: names the bound.
    """
    if not namespace or not key:
        raise KvLimitError(
            f"namespace {namespace[:64]!r}, key {key[:64]!r}: neither may be empty; nothing was changed"
        )
    key_chars = len(namespace) + len(key)
    if key_chars > KEY_CHARS_MAX:
        raise KvLimitError(
            f"namespace and key have {key_chars} characters, at most {KEY_CHARS_MAX}; nothing was changed"
        )
    if len(value) > VALUE_CHARS_MAX:
        raise KvLimitError(
            f"the value has {len(value)} characters, at most {VALUE_CHARS_MAX}; nothing was changed"
        )
    others = [
        (name, len(name) + len(at) + len(text))
        for name, at, text in kept
        if (name, at) != (namespace, key)
    ]
    if len(others) >= ENTRIES_MAX:
        raise KvLimitError(
            f"{len(others)} values are kept already, at most {ENTRIES_MAX}; nothing was changed"
        )
    new = key_chars + len(value)
    of_namespace = new + sum(chars for name, chars in others if name == namespace)
    of_all = new + sum(chars for _, chars in others)
    for what, chars, chars_max in (
        (f"namespace {namespace[:64]!r}", of_namespace, NAMESPACE_CHARS_MAX),
        ("all values together", of_all, TOTAL_CHARS_MAX),
    ):
        if chars > chars_max:
            raise KvLimitError(
                f"{what} would have {chars} characters, at most {chars_max}; nothing was changed"
            )


class LocalKv:
    """The values of a name server that stands alone, in one JSON file that is replaced as a whole.

    The file is RocketMQ's kvConfig.json, so an old one can be put in place. Without a disk the values
    live in memory only.
    """

    def __init__(self, disk: Disk | None) -> None:
        """Read the file, if there is one.

        Raises:
            NameServerConfigError: it cannot be read or is damaged; nothing is thrown away in silence.
        """
        self._disk = disk
        self._lock = trio.Lock()
        self._table = {} if disk is None else _load(disk)

    @property
    def is_ready(self) -> bool:
        """True: nobody else is asked."""
        return True

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace; None when it has none."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; on the disk when this returns.

        Raises:
            KvLimitError: over a bound.
            KvUnavailableError: the file could not be written.
        """
        async with self._lock:
            check_limits(namespace, key, value, self._all())
            await self._replace(
                {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
            )

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value; gone from the disk when this returns.

        Raises:
            KvUnavailableError: the file could not be written.
        """
        async with self._lock:
            if self.get(namespace, key) is None:
                return
            kept = {name: text for name, text in self._table[namespace].items() if name != key}
            table = {**self._table, namespace: kept}
            await self._replace({name: values for name, values in table.items() if values})

    def _all(self) -> Iterator[tuple[str, str, str]]:
        """Yield all values with their namespaces and keys."""
        for namespace, values in self._table.items():
            for key, value in values.items():
                yield namespace, key, value

    async def close(self) -> None:
        """Do nothing: no file stays open."""

    async def _replace(self, table: dict[str, dict[str, str]]) -> None:
        """Write the table to disk, and show it to readers only then; the caller holds the lock."""
        if self._disk is not None:
            try:
                await trio.to_thread.run_sync(_save, self._disk, table)
            except DiskFullError as error:
                raise KvUnavailableError(
                    f"{_FILE_NAME} could not be written: {error}; nothing was changed",
                    definite=True,
                ) from error
            except OSError as error:
                raise KvUnavailableError(
                    f"{_FILE_NAME} could not be written: {error}; the change may be found after a restart",
                    definite=False,
                ) from error
        self._table = table


def _load(disk: Disk) -> dict[str, dict[str, str]]:
    """Return the values of the file; none without one.

    Raises:
        NameServerConfigError: it cannot be read or is damaged.
    """
    try:
        settle_whole(disk, "", _FILE_NAME)
        if not disk.exists(_FILE_NAME):
            return {}
        file = disk.open(_FILE_NAME)
        try:
            path, data = file.path, file.read_at(0, file.size())
        finally:
            file.close()
    except OSError as error:
        raise NameServerConfigError(f"{_FILE_NAME} cannot be read: {error}") from error
    try:
        table = json.loads(data)[_TABLE_MEMBER]
        return {
            str(namespace): {str(key): str(value) for key, value in values.items()}
            for namespace, values in table.items()
        }
    except (ValueError, RecursionError) as error:
        raise NameServerConfigError(f"{path} is not JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise NameServerConfigError(
            f'{path} does not hold {{"{_TABLE_MEMBER}": {{namespace: {{key: value}}}}}}: '
            f"{type(error).__name__} {error}"
        ) from error


def _save(disk: Disk, table: Mapping[str, Mapping[str, str]]) -> None:
    """Make the values durable.

    Raises:
        DiskFullError: there was no room; the old file stands.
        OSError: it failed; which values the disk holds is unknown.
    """
    replace_whole(disk, "", _FILE_NAME, json.dumps({_TABLE_MEMBER: table}, indent=1).encode())
