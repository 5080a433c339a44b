"""A digest of access rules, by which one sees whether members of a group go by the same. Pure.

It covers secret keys, so it is made with the secret of the group (HMAC-SHA256): who reads figures could otherwise try
keys against it. While the group changes its secret, two are accepted (adr/0229), with a digest for each: members
that are one step apart have one in common.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from typing import Final

from broker.access.rules import AccessRules, Account

_PURPOSE: Final = b"access rules 1\n"
_CHARS: Final = 16


def rules_digest(rules: AccessRules, secret: str) -> str:
    """Return 16 hexadecimal digits, the same for rules that mean the same, in whatever order and files they stand."""
    text = json.dumps(
        [
            sorted({pattern.text for pattern in rules.white_addresses}),
            [_row(rules.accounts[name]) for name in sorted(rules.accounts)],
        ]
    )
    made = hmac.new(secret.encode(), _PURPOSE + text.encode(), hashlib.sha256)
    return made.hexdigest()[:_CHARS]


def _row(account: Account) -> list[object]:
    return [
        account.access_key,
        account.secret_key,
        account.white_addresses.text,
        account.is_admin,
        int(account.default_topic),
        int(account.default_group),
        sorted((name, int(right)) for name, right in account.rights.items()),
    ]


class RulesDigests:
    """The digests of the rules that hold now; made anew only when rules or secrets are others.

    Args:
        rules: returns what holds now.
        secrets: returns the secrets of the group that are accepted; none: there is nobody to compare with.
    """

    def __init__(
        self, rules: Callable[[], AccessRules], secrets: Callable[[], Sequence[str]]
    ) -> None:
        self._rules = rules
        self._secrets = secrets
        self._of: tuple[AccessRules | None, tuple[str, ...]] = (None, ())
        self._digests: tuple[str, ...] = ()

    def __call__(self) -> tuple[str, ...]:
        """Return a digest for each secret that is accepted."""
        rules, secrets = self._rules(), tuple(self._secrets())
        if self._of[0] is not rules or self._of[1] != secrets:
            self._of = (rules, secrets)
            self._digests = tuple(rules_digest(rules, secret) for secret in secrets)
        return self._digests
