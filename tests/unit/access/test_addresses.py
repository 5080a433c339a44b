"""Patterns of addresses, as plain_acl.yml of RocketMQ 4.9 has them."""

from __future__ import annotations

import pytest

from broker.access.addresses import host_of, parse_pattern
from broker.access.errors import AccessRulesError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", "", "127.0.0.1 ::1"),
        ("  ", "", "127.0.0.1"),
        ("*", "127.0.0.1 ::1 10.0.0.1", ""),
        ("*.*.*.*", "127.0.0.1 ::1", ""),
        ("*:*:*:*:*:*:*:*", "127.0.0.1 ::1", ""),
        ("10.10.103.7", "10.10.103.7 ::ffff:10.10.103.7", "10.10.103.70 10.10.103.8 ::1"),
        ("10.10.103.*", "10.10.103.0 10.10.103.255", "10.10.104.1 110.10.103.1"),
        ("192.168.*.*", "192.168.0.0 192.168.255.255", "192.169.0.0"),
        ("192.168.*", "192.168.0.0 192.168.255.255", "192.169.0.0"),
        ("192.168.*.5", "192.168.9.5", "192.168.9.6"),
        ("192.168.3-7.*", "192.168.3.1 192.168.7.255", "192.168.2.1 192.168.8.1"),
        ("192.168.1.100-200", "192.168.1.100 192.168.1.200", "192.168.1.99 192.168.1.201"),
        ("10.0.0.1, 10.0.0.3", "10.0.0.1 10.0.0.3", "10.0.0.2"),
        ("10.0.0.{1,3}", "10.0.0.1 10.0.0.3", "10.0.0.2"),
        (
            "1050:0000:0000:0000:0005:0600:300c:326b",
            "1050::5:600:300c:326B",
            "1050::5:600:300c:326c",
        ),
        ("1050::5:600:300c:{1,2}", "1050::5:600:300c:1 1050::5:600:300c:2", "1050::5:600:300c:3"),
        ("1050::5:600:300c:*", "1050::5:600:300c:ffff", "1050::5:600:300d:1"),
        ("1050::5:600:300c:1-2ff", "1050::5:600:300c:2ff", "1050::5:600:300c:300"),
        ("2001:db8:1:*", "2001:db8:1::9 2001:db8:1:2:3:4:5:6", "2001:db8:2::9"),
        ("fe80::1", "fe80::1%eth0", "fe80::2"),
    ],
)
def test_patterns_mean_their_addresses(pattern: str, inside: str, outside: str) -> None:
    parsed = parse_pattern(pattern)
    assert [host for host in inside.split() if not parsed.matches(host)] == []
    assert [host for host in outside.split() if parsed.matches(host)] == []


@pytest.mark.parametrize("host", ["", "localhost", "a.b.c.d", "10.0.0", "10.0.0.0.0"])
def test_what_is_no_ip_address_is_meant_by_all_only(host: str) -> None:
    assert not parse_pattern("10.*").matches(host)
    assert parse_pattern("*").matches(host)


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0", "10.0.0.256", "10.0.0.0.1", "10.0.0.-1", "10.0.0.7-3", "10.0.0.a", "10.0.0.{1,2",
        "{10.0.0.1}", "10.0.0{1}", "host", "1::2::3", "12345::1", "1:2:3:4:5:6:7:8:9", "10.0.0.\u0661", "10..0.1",
        "10.0.0.1/8", "10.0.0. 1 1",
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(AccessRulesError, match="no address or range"):
        parse_pattern(pattern)


def test_a_host_is_what_stands_before_the_port() -> None:
    assert host_of("10.0.0.1:80") == "10.0.0.1"
    assert host_of("[::1]:80") == "::1"
