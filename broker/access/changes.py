"""Changes of access rules as tools ask for them (50, 51, 53): from the files as they are to the text of one. Pure.

As in RocketMQ, comments are lost, an account stays in the file where it stands, a new one goes to plain_acl.yml, and
the file's `dataVersion` counts its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from broker.access.addresses import parse_pattern
from broker.access.errors import AccessRulesError
from broker.access.plain_acl import (
    ACCOUNTS,
    DATA_VERSION,
    GLOBAL_ADDRESSES,
    AclFile,
    parse_file,
    read_permission,
    split_right,
)

Change = Callable[[Sequence[AclFile], int], "tuple[str, str]"]
"""Makes the name and the new text of the file that is to be written, of the files and the time in ms since 1970."""


@dataclass(frozen=True, slots=True)
class AccountChange:
    """An account as a tool wants it; None leaves what it has.

    Attributes:
        members: by the names that they have in the file.
    """

    access_key: str
    secret_key: str
    members: Mapping[str, str | list[str] | None]

    def of(self, default: str) -> Change:
        """Return the change; an account that is new goes to the file `default`.

        Raises:
            AccessRulesError: a right or an address cannot hold.
        """
        for key in ("topicPerms", "groupPerms"):
            for entry in self.members.get(key) or []:
                _check_word(split_right(entry)[1])
        for key in ("defaultTopicPerm", "defaultGroupPerm"):
            word = self.members.get(key)
            if isinstance(word, str) and word:
                _check_word(word)

        def make(files: Sequence[AclFile], now_ms: int) -> tuple[str, str]:
            file, rows, at = _find(files, self.access_key)
            if file is None:
                file = next(
                    (each for each in files if each.name == default), parse_file(default, "")
                )
                rows = _rows(file)
            row = dict(rows[at]) if at is not None else {}
            row |= {"accessKey": self.access_key, "secretKey": self.secret_key}
            row |= {key: value for key, value in self.members.items() if value is not None}
            rows = [each for place, each in enumerate(rows) if place != at]
            return _text(file, {ACCOUNTS: [*rows, row]}, now_ms)

        return make


def removal(access_key: str) -> Change:
    """Return the change that removes an account."""

    def make(files: Sequence[AclFile], now_ms: int) -> tuple[str, str]:
        file, rows, at = _find(files, access_key)
        if file is None:
            raise AccessRulesError(f"there is no account {access_key[:64]}")
        return _text(
            file, {ACCOUNTS: [row for place, row in enumerate(rows) if place != at]}, now_ms
        )

    return make


def new_global_addresses(addresses: Sequence[str], name: str) -> Change:
    """Return the change of the addresses in a file whose clients may do everything.

    Raises:
        AccessRulesError: an address is none.
    """
    for address in addresses:
        parse_pattern(address)

    def make(files: Sequence[AclFile], now_ms: int) -> tuple[str, str]:
        file = next((each for each in files if each.name == name), None)
        if file is None:
            raise AccessRulesError(f"{name[:200]} is not among the files of access rules")
        return _text(file, {GLOBAL_ADDRESSES: list(addresses)}, now_ms)

    return make


def version_of(file: AclFile) -> dict[str, int]:
    """Return how often tools have changed a file, and when last, in ms since 1970."""
    rows = file.tree.get(DATA_VERSION)
    row = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    return {key: _number(row.get(key)) for key in ("counter", "timestamp")}


def _number(value: object) -> int:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


def _check_word(word: str) -> None:
    if read_permission(word) is None:
        raise AccessRulesError(f"{word[:40]!r} is no right: PUB, SUB, PUB|SUB and DENY are")


def _rows(file: AclFile) -> list[dict[str, Any]]:
    return list(file.tree.get(ACCOUNTS) or [])


def _find(
    files: Sequence[AclFile], access_key: str
) -> tuple[AclFile | None, list[dict[str, Any]], int | None]:
    """Return the file in which an account stands first, its accounts, and the place of it; None without one."""
    for file in files:
        rows = _rows(file)
        for at, row in enumerate(rows):
            if row.get("accessKey") == access_key:
                return file, rows, at
    return None, [], None


def _text(file: AclFile, members: Mapping[str, object], now_ms: int) -> tuple[str, str]:
    """Return a file's name and its text with other members, which is read once more before it is written."""
    version = version_of(file) | {"timestamp": now_ms}
    version["counter"] += 1
    tree = {**file.tree, **members, DATA_VERSION: [version]}
    if tree.get(ACCOUNTS):
        tree[ACCOUNTS] = [_with_flag(row) for row in tree[ACCOUNTS]]
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    parse_file(file.name, text)
    return file.name, text


def _with_flag(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an account whose `admin` is no text, which would be written in quotes."""
    flag = {"admin": str(row["admin"]).strip().lower() == "true"} if "admin" in row else {}
    return {**row, **flag}
