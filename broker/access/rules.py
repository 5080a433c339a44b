"""Accounts and their rights: what holds, and what an account may do. Pure; it must not know files or requests.

A *resource* is a topic, or a group under the name of its retry topic, as in RocketMQ: so what lies in `%RETRY%g` is
allowed with the group g.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final

from broker.access.addresses import AddressPattern
from dledger_mq.message.names import RETRY_PREFIX, TRACE_TOPIC, is_retry_topic
from dledger_mq.remoting.signature import SigningKey

KEY_LENGTH_MIN: Final = 7
"""Of access keys and secret keys, as in RocketMQ: "longer than 6"."""

EVERY_TOPIC: Final = ""
"""The resource of who reads what no topic is named of: all topics must be allowed."""

SOME_TOPIC: Final = "*"
"""The resource of who ends what a send has begun: one topic must be allowed. No topic has this name."""


class Permission(IntFlag):
    """Rights of a resource; DENY beats the others."""

    NONE = 0
    DENY = 1
    ANY = 2
    """Needed only: PUB or SUB."""
    PUB = 4
    SUB = 8

    def allows(self, needed: Permission) -> bool:
        """Return whether who has this right has the needed one."""
        held = int(self)  # the enumeration's own operators take most of the time of a look
        if held & _DENY:
            return False
        wanted = int(needed)
        return bool(held & (_ANY_OF if wanted & _ANY else wanted))


_DENY: Final = int(Permission.DENY)
_ANY: Final = int(Permission.ANY)
_ANY_OF: Final = int(Permission.PUB | Permission.SUB)


@dataclass(frozen=True, slots=True)
class Needs:
    """The rights that a request asks of its sender.

    Attributes:
        is_admin: only an account with `admin: true` may send it.
        resources: each with the right that is needed.
    """

    is_admin: bool = False
    resources: tuple[tuple[str, Permission], ...] = ()


NO_NEEDS: Final = Needs()


@dataclass(frozen=True, slots=True)
class Account:
    """An account of plain_acl.yml.

    Attributes:
        white_addresses: clients with such an address need neither a signature nor rights.
        is_admin: it may send administrative requests; without `rights` it may do everything.
        default_topic, default_group: for what is not in `rights`.
        rights: by resource.
        key: the secret key, ready to check signatures.
    """

    access_key: str
    secret_key: str = field(repr=False)
    white_addresses: AddressPattern
    is_admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    rights: Mapping[str, Permission] = field(default_factory=dict)
    key: SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", SigningKey(self.secret_key))

    def why_not(self, needs: Needs, code: int) -> str | None:
        """Return why this account may not send a request, in RocketMQ's words; None: it may."""
        if needs.is_admin and not self.is_admin:
            return f"Need admin permission for request code={code}, but accessKey={self.access_key} is not"
        if (self.is_admin and not self.rights) or needs.resources == _TRACE:
            return None
        for resource, needed in needs.resources:
            if not self._may(resource, needed):
                return f"No default permission for {_shown(resource)}"
        return None

    def _may(self, resource: str, needed: Permission) -> bool:
        if resource == EVERY_TOPIC:
            return all(right.allows(needed) for right in (self.default_topic, *self._topics))
        if resource == SOME_TOPIC:
            return any(right.allows(needed) for right in (self.default_topic, *self._topics))
        default = self.default_group if is_retry_topic(resource) else self.default_topic
        return self.rights.get(resource, default).allows(needed)

    @property
    def _topics(self) -> Iterable[Permission]:
        return (right for name, right in self.rights.items() if not is_retry_topic(name))


_TRACE: Final = ((TRACE_TOPIC, Permission.PUB),)
"""Every account may send traces."""


def _shown(resource: str) -> str:
    if resource == EVERY_TOPIC:
        return "all topics"
    if resource == SOME_TOPIC:
        return "any topic"
    if is_retry_topic(resource):
        return f"group:{resource.removeprefix(RETRY_PREFIX)}"
    return f"topic:{resource}"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All rules of a node.

    Attributes:
        white_addresses: clients with such an address may do everything, without a signature.
        accounts: by access key.
    """

    white_addresses: tuple[AddressPattern, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)
