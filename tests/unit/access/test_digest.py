"""The digest of access rules: the same for what means the same, another for each difference, and no way to a key."""

from __future__ import annotations

from itertools import pairwise

import pytest

from broker.access.digest import RulesDigests, rules_digest
from broker.access.plain_acl import join_files, parse_file
from broker.access.rules import AccessRules

SECRET = "of the group"
FILE = """
globalWhiteRemoteAddresses: [10.0.0.7, 10.0.1.*]
accounts:
- {accessKey: shop-orders, secretKey: 8dca1ea9a3f0c2, topicPerms: [orders=PUB, payments=SUB]}
- {accessKey: operators, secretKey: 3b7f60c8d21a45, admin: true}
"""


def read(*texts: str) -> AccessRules:
    files = [parse_file(f"{at}.yml", text) for at, text in enumerate(texts)]
    return join_files(files)[0]


def digest(*texts: str) -> str:
    return rules_digest(read(*texts), SECRET)


def test_order_comments_and_files_do_not_count() -> None:
    turned = """
    # the same once more
    accounts:
    - accessKey: operators
      admin: true
      secretKey: 3b7f60c8d21a45
    - {accessKey: shop-orders, secretKey: 8dca1ea9a3f0c2, topicPerms: [payments=SUB, orders=PUB]}
    globalWhiteRemoteAddresses: [10.0.1.*, 10.0.0.7]
    """
    first, _, second = FILE.partition("- {accessKey: operators")
    assert digest(FILE) == digest(turned)
    assert digest(FILE) == digest(first, f"accounts:\n- {{accessKey: operators{second}")
    assert len(digest(FILE)) == 16


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("8dca1ea9a3f0c2", "8dca1ea9a3f0c3"),
        ("shop-orders", "shop-order5"),
        ("orders=PUB", "orders=DENY"),
        ("payments=SUB", "payment=SUB"),
        (", admin: true", ""),
        (", admin: true", ", admin: true, defaultTopicPerm: PUB"),
        (", admin: true", ", admin: true, defaultGroupPerm: SUB"),
        (", admin: true", ", admin: true, whiteRemoteAddress: 10.0.0.1"),
        ("10.0.0.7", "10.0.0.8"),
        ("10.0.0.7, ", ""),
    ],
)
def test_each_difference_counts(was: str, is_now: str) -> None:
    assert was in FILE
    assert digest(FILE) != digest(FILE.replace(was, is_now))


def test_it_takes_the_groups_secret_to_make_one() -> None:
    assert digest(FILE) != rules_digest(read(FILE), "another")


def test_members_one_step_apart_have_one_in_common() -> None:
    """A group changes its secret: add, swap, remove."""
    steps = [("old",), ("old", "new"), ("new", "old"), ("new",)]
    rules = read(FILE)
    told = [set(RulesDigests(lambda: rules, lambda step=step: step)()) for step in steps]  # type: ignore[misc]
    assert [len(before & after) for before, after in pairwise(told)] == [1, 2, 1]


def test_it_follows_rules_and_secrets() -> None:
    rules, secrets = read(FILE), ["a"]
    digests = RulesDigests(lambda: rules, lambda: secrets)
    first = digests()
    assert digests() is first
    secrets = ["b"]
    second = digests()
    assert second != first
    rules = read(FILE.replace("payments", "invoices"))
    assert digests() != second
    secrets = []
    assert digests() == ()
