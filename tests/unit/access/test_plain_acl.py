"""plain_acl.yml is read as RocketMQ 4.9 reads it, and what is wrong in it is said without its secrets."""

from __future__ import annotations

import pytest

from broker.access.errors import AccessRulesError
from broker.access.plain_acl import join_files, parse_file
from broker.access.rules import Permission

OF_ROCKETMQ = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""
"""conf/plain_acl.yml of the release 4.9.8."""


def test_the_file_that_rocketmq_comes_with() -> None:
    rules, warnings = join_files([parse_file("plain_acl.yml", OF_ROCKETMQ)])
    assert warnings == ()
    assert [each.text for each in rules.white_addresses] == ["10.10.103.*", "192.168.0.*"]
    first, second = rules.accounts.values()
    assert (first.access_key, first.secret_key, first.is_admin) == ("RocketMQ", "12345678", False)
    assert (first.default_topic, first.default_group) == (Permission.DENY, Permission.SUB)
    both = Permission.PUB | Permission.SUB
    assert first.rights == {
        "topicA": Permission.DENY,
        "topicB": both,
        "topicC": Permission.SUB,
        "%RETRY%groupA": Permission.DENY,
        "%RETRY%groupB": both,
        "%RETRY%groupC": Permission.SUB,
    }
    assert not first.white_addresses.matches("192.168.1.1")
    assert (second.is_admin, second.rights, second.white_addresses.text) == (
        True,
        {},
        "192.168.1.*",
    )


def account(text: str = "", secret: str = "geheim-9") -> str:
    return f"accounts:\n- accessKey: RocketMQ\n  secretKey: {secret}\n" + text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accounts: [", "line 1: it is no YAML"),
        ("a\n- b: :\n :", "it is no YAML"),
        ("- accessKey: RocketMQ", "it has no members"),
        ("accounts: RocketMQ", "accounts is no list"),
        ("accounts:\n- RocketMQ", "account 1 has no members"),
        ("accounts:\n- accessKey: RocketMQ", "account 1: accessKey and secretKey must be there, and longer than 6"),
        (account(secret="gehei9"), "longer than 6"),
        (account(secret="[geheim-9]"), "account 1: secretKey is no text"),
        (account("  topicPerms:\n  - topicA\n"), "'topicA' is not name=PERM"),
        (account("  topicPerms:\n  - a=b=c\n"), "'a=b=c' is not name=PERM"),
        (account("  topicPerms: a=PUB\n"), "topicPerms is no list of texts"),
        (account("  whiteRemoteAddress: 10.0.0\n"), "'10.0.0' is no address"),
        ("globalWhiteRemoteAddresses:\n- nowhere\n", "'nowhere' is no address"),
        (account("  secretKey: [geheim-9\n"), "it is no YAML"),
    ],
)  # fmt: skip
def test_what_cannot_hold_is_refused_without_its_secret(text: str, expected: str) -> None:
    with pytest.raises(AccessRulesError, match=r"^x\.yml: ") as caught:
        parse_file("x.yml", text)
    assert expected in str(caught.value)
    assert "gehei" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "accounts:\n", "accounts: []"])
def test_an_empty_file_names_nobody(text: str) -> None:
    rules, warnings = join_files([parse_file("x.yml", text)])
    assert (rules.accounts, rules.white_addresses, warnings) == ({}, (), ())


def test_what_surprises_is_said() -> None:
    text = (
        account("  defaultTopicPerm: ALL\n  topicPerm:\n  - a=PUB\n  groupPerms: [g=sub]\n")
        + "acount: 1\n"
    )
    file = parse_file("x.yml", text)
    counts = "which counts as DENY: PUB, SUB, PUB|SUB or DENY was expected"
    assert sorted(file.warnings) == [
        f"x.yml: account RocketMQ: defaultTopicPerm is 'ALL', {counts}",
        f"x.yml: account RocketMQ: groupPerms of g is 'sub', {counts}",
        "x.yml: account RocketMQ: topicPerm is unknown and does nothing",
        "x.yml: acount is unknown and does nothing",
    ]
    assert file.accounts[0].rights == {"%RETRY%g": Permission.DENY}


def test_an_access_key_counts_where_it_stands_first() -> None:
    rules, warnings = join_files(
        [
            parse_file("a.yml", account(secret="secret-of-a")),
            parse_file("b.yml", account(secret="secret-of-b")),
        ]
    )
    assert rules.accounts["RocketMQ"].secret_key == "secret-of-a"
    assert warnings == (
        "b.yml: the account RocketMQ stands somewhere before; this one does nothing",
    )


def test_scalars_count_as_they_are_written() -> None:
    text = "accounts:\n- accessKey: 0123456789\n  secretKey: 1.50e10000\n  admin: TRUE\n  whiteRemoteAddress: null\n"
    (found,) = parse_file("x.yml", text).accounts
    assert (found.access_key, found.secret_key, found.is_admin) == (
        "0123456789",
        "1.50e10000",
        True,
    )
    assert found.white_addresses.text == ""


def test_a_secret_is_not_shown() -> None:
    rules, _ = join_files([parse_file("x.yml", account())])
    assert "geheim" not in repr(rules)
