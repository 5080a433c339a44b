"""The text of a plain_acl.yml, read as RocketMQ 4.9 reads it. Pure: it must not open files.

Every scalar counts as it is written, so `accessKey: 12345678` is a text. Members that RocketMQ does not have are
told of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from broker.access.addresses import AddressPattern, parse_pattern
from broker.access.errors import AccessRulesError
from broker.access.rules import KEY_LENGTH_MIN, AccessRules, Account, Permission
from dledger_mq.message.names import retry_topic

GLOBAL_ADDRESSES: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
DATA_VERSION: Final = "dataVersion"

_MEMBERS: Final = frozenset({GLOBAL_ADDRESSES, ACCOUNTS, DATA_VERSION})
_OF_ACCOUNTS: Final = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)
_WORDS: Final = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}
_LENGTH_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AclFile:
    """The content of one file.

    Attributes:
        name: the file's, for people.
        tree: its members as they stand there, all scalars as texts.
        white_addresses: for all accounts.
        accounts: in the order of the file.
        warnings: what is passed over or surprises.
    """

    name: str
    tree: Mapping[str, Any]
    white_addresses: tuple[AddressPattern, ...]
    accounts: tuple[Account, ...]
    warnings: tuple[str, ...]


def parse_file(name: str, text: str) -> AclFile:
    """Read the text of a file.

    Raises:
        AccessRulesError: it is no YAML, or says what cannot hold. It names the file, and no secret.
    """
    try:
        tree = _load(text)
        warnings = [f"{name}: {key} is unknown and does nothing" for key in tree.keys() - _MEMBERS]
        addresses = tuple(map(parse_pattern, _texts(tree, GLOBAL_ADDRESSES)))
        rows = enumerate(_rows(tree), 1)
        accounts = tuple(_account(row, at, name, warnings) for at, row in rows)
    except AccessRulesError as error:
        raise AccessRulesError(f"{name}: {error}") from None  # the cause may show a secret
    return AclFile(name, tree, addresses, accounts, tuple(warnings))


def join_files(files: Iterable[AclFile]) -> tuple[AccessRules, tuple[str, ...]]:
    """Return the rules of several files, and what is passed over: an access key counts where it stands first."""
    addresses: list[AddressPattern] = []
    accounts: dict[str, Account] = {}
    warnings: list[str] = []
    for file in files:
        warnings += file.warnings
        addresses += file.white_addresses
        for account in file.accounts:
            if accounts.setdefault(account.access_key, account) is not account:
                warnings.append(
                    f"{file.name}: the account {account.access_key} stands somewhere before; this one does nothing"
                )
    return AccessRules(tuple(addresses), accounts), tuple(warnings)


def read_permission(word: str) -> Permission | None:
    """Return the right that a word stands for; None for another word."""
    return _WORDS.get(word.strip())


def split_right(entry: str) -> tuple[str, str]:
    """Return the name and the word of `name=PERM`.

    Raises:
        AccessRulesError: it has another form.
    """
    items = [item.strip() for item in entry.split("=") if item]
    if len(items) != 2 or not items[0]:
        raise AccessRulesError(f"{entry[:200]!r} is not name=PERM, for example topicA=SUB")
    return items[0], items[1]


def _load(text: str) -> dict[str, Any]:
    """Return the members of a file, all scalars as texts; raises AccessRulesError, which shows nothing of the file."""
    if len(text) > _LENGTH_MAX:
        raise AccessRulesError(f"it has {len(text)} characters, at most {_LENGTH_MAX}")
    try:
        tree = yaml.BaseLoader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise AccessRulesError(f"{where}it is no YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise AccessRulesError("it is no YAML") from None
    if tree is None or tree == "":
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise AccessRulesError("it has no members, such as accounts:")
    return tree


def _rows(tree: Mapping[str, Any]) -> list[object]:
    rows = tree.get(ACCOUNTS) or []
    if not isinstance(rows, list):
        raise AccessRulesError(f"{ACCOUNTS} is no list")
    return rows


def _account(row: object, at: int, file: str, warnings: list[str]) -> Account:
    """Read the account that stands at a place of the list, the first at 1; what surprises is added to `warnings`."""
    if not isinstance(row, dict):
        raise AccessRulesError(f"account {at} has no members, such as accessKey:")
    access_key, secret_key = _text(row, "accessKey", at), _text(row, "secretKey", at)
    if min(len(access_key), len(secret_key)) < KEY_LENGTH_MIN:
        raise AccessRulesError(
            f"account {at}: accessKey and secretKey must be there, and longer than {KEY_LENGTH_MIN - 1}"
        )
    place = f"{file}: account {access_key}"
    warnings += [f"{place}: {key} is unknown and does nothing" for key in row.keys() - _OF_ACCOUNTS]
    rights = {}
    for key, is_group in (("groupPerms", True), ("topicPerms", False)):
        for entry in _texts(row, key):
            name, word = split_right(entry)
            resource = retry_topic(name) if is_group else name
            rights[resource] = _right(word, f"{place}: {key} of {name}", warnings)
    default_topic, default_group = (
        _right(_text(row, key, at) or "DENY", f"{place}: {key}", warnings)
        for key in ("defaultTopicPerm", "defaultGroupPerm")
    )
    return Account(
        access_key,
        secret_key,
        parse_pattern(_text(row, "whiteRemoteAddress", at)),
        is_admin=_text(row, "admin", at).strip().lower() == "true",
        default_topic=default_topic,
        default_group=default_group,
        rights=rights,
    )


def _right(word: str, place: str, warnings: list[str]) -> Permission:
    """Read a right; any other word is DENY, as in RocketMQ."""
    right = read_permission(word)
    if right is None:
        warnings.append(
            f"{place} is {word[:40]!r}, which counts as DENY: PUB, SUB, PUB|SUB or DENY was expected"
        )
    return Permission.DENY if right is None else right


def _text(row: Mapping[str, object], key: str, at: int) -> str:
    value = row.get(key, "")
    if not isinstance(value, str):
        raise AccessRulesError(f"account {at}: {key} is no text")
    if not _is_whole(value):
        raise AccessRulesError(f"account {at}: {key} has half a character")
    return "" if value in ("null", "~") else value


def _texts(row: Mapping[str, object], key: str) -> list[str]:
    value = row.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise AccessRulesError(f"{key} is no list of texts")
    if not all(map(_is_whole, value)):
        raise AccessRulesError(f"{key} has half a character")
    return value


def _is_whole(text: str) -> bool:
    """Return whether all characters of a text are whole: an escape can name half of one, which nothing can write."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
