"""The kinds of rows in the table of broker.conf's keys. Pure data types; they know no key.

RocketMQ has some 450 keys. Each is *honoured*, *refused* unless its value asks for nothing that is missing here, or
*needless*: known, and without meaning here for a reason that is said. Keys that are in neither of its releases, 4.9.8
and 5.3.3, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

ANY_HOSTS: Final = (str(IPv4Address(0)), str(IPv6Address(0)))
"""Hosts that stand for all addresses of a machine."""


class ValueKind(Enum):
    """The form of a key's value; the value here says it to people."""

    TEXT = "a text"
    NUMBER = "a whole number"
    FRACTION = "a number"
    FLAG = "true or false"


class Scope(Enum):
    """The reach of a change of a setting while brokers run; the value says it to people."""

    GROUP = "the group"
    NODE = "the node"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of broker.conf.

    Attributes:
        name: as RocketMQ spells it; case counts.
        kind: the form of its value.
        in_49: RocketMQ 4.9.8's default, or what decides it; None: that release has no such key.
        in_53: the same of 5.3.3.
    """

    name: str
    kind: ValueKind
    in_49: str | None = None
    in_53: str | None = None

    @property
    def is_ours(self) -> bool:
        """True for a key that RocketMQ does not have."""
        return self.in_49 is None and self.in_53 is None


@dataclass(frozen=True, slots=True)
class HonouredKey:
    """A key that does what it says.

    Attributes:
        meaning: for the page of keys, in Markdown.
        unit: what a number counts; empty: things.
        shown_default: what holds without the key, where it is not one fixed value.
        scope: whom a change concerns while the broker runs; None: it is read at the start only.
        is_strict: a wrong value is never passed over: its default could let in, lose or show more than was asked for.
    """

    key: Key
    meaning: str
    unit: str = ""
    shown_default: str | None = None
    scope: Scope | None = None
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class RefusedKey:
    """A key that asks for something that is not here, where silence would surprise or harm.

    Attributes:
        accepts: values that ask for nothing, in whatever case; every other one is refused.
        reason: why, after `key=value: `.
        note: what is said of an accepted value; empty: nothing.
    """

    key: Key
    accepts: tuple[str, ...]
    reason: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class NeedlessKeys:
    """Keys of RocketMQ without meaning here, for one reason.

    Attributes:
        what: what they are about, a heading.
        reason: why they are not needed, after `key is not used: `.
    """

    what: str
    reason: str
    keys: tuple[Key, ...]


def text(name: str, *defaults: str | None) -> Key:
    """Build the row of a key with a text."""
    return _key(name, ValueKind.TEXT, defaults)


def number(name: str, *defaults: str | None) -> Key:
    """Build the row of a key with a whole number."""
    return _key(name, ValueKind.NUMBER, defaults)


def fraction(name: str, *defaults: str | None) -> Key:
    """Build the row of a key with a number."""
    return _key(name, ValueKind.FRACTION, defaults)


def flag(name: str, *defaults: str | None) -> Key:
    """Build the row of a key that is true or false."""
    return _key(name, ValueKind.FLAG, defaults)


def _key(name: str, kind: ValueKind, defaults: tuple[str | None, ...]) -> Key:
    """Build a row from no default (a key of ours), one of both releases, or one of 4.9.8 and one of 5.3.3."""
    assert len(defaults) <= 2, f"{name} has {len(defaults)} defaults"
    return Key(name, kind, *(defaults * 2 if len(defaults) == 1 else defaults))
