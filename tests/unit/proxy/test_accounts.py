"""Who calls, by RocketMQ 5's signatures, and whether he may."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf")

from broker.access.rule_files import RuleFiles
from broker.proxy.accounts import SKEW_S, Accounts, CallSender, to_consume, to_send
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SECRET = "8dca1ea9a3f0c2"
RULES = f"""
globalWhiteRemoteAddresses: [10.9.0.*]
accounts:
  - accessKey: shop-orders
    secretKey: {SECRET}
    topicPerms: [orders=PUB, payments=SUB]
    groupPerms: [billing=SUB]
  - accessKey: insider
    secretKey: another-secret-key
    whiteRemoteAddress: 10.8.0.1
"""
STRANGER = "203.0.113.7:4711"


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    path = tmp_path / "plain_acl.yml"
    path.write_text(RULES)
    path.chmod(0o600)
    return Accounts(RuleFiles(path).read(), lambda: NOW)


def signed(
    key: str = "shop-orders", secret: str = SECRET, at: datetime = NOW, date: str | None = None
) -> dict[str, str | bytes]:
    date = at.strftime("%Y%m%dT%H%M%SZ") if date is None else date
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest().upper()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": text, "x-mq-date-time": date}


def refusal(accounts: Accounts, metadata: dict[str, str | bytes], address: str = STRANGER) -> str:
    with pytest.raises(CallRefusedError) as refused:
        accounts.sender("SendMessage", metadata, address)
    assert refused.value.code is Code.UNAUTHORIZED
    return str(refused.value)


def test_an_account_is_who_signs_with_its_key(accounts: Accounts) -> None:
    wanted = CallSender("shop-orders", STRANGER)
    assert accounts.sender("x", signed(), STRANGER) == wanted
    assert accounts.sender("x", signed("shop-orders/region/service"), STRANGER) == wanted
    head, _, hexadecimal = str(signed()["authorization"]).rpartition("=")
    small = signed() | {"authorization": f"{head}={hexadecimal.lower()}"}
    assert accounts.sender("x", small, STRANGER) == wanted
    assert "failed" in refusal(accounts, signed(secret="another-secret"))
    assert "failed" in refusal(accounts, signed() | {"x-mq-date-time": "20260301T120001Z"})
    assert "No acl config for nobody" in refusal(accounts, signed("nobody"))
    for text in ("", "Basic x", "MQv2-HMAC-SHA1 Credential=shop-orders", "MQv2-HMAC-SHA1"):
        assert "No accessKey" in refusal(accounts, signed() | {"authorization": text})
    assert SECRET not in refusal(accounts, signed(secret="another-secret"))


@pytest.mark.parametrize("hours", [-14, 0, 14])
def test_dates_may_be_those_of_any_zone(accounts: Accounts, hours: int) -> None:
    """Java's and Python's clients write the time of their zone, with a Z."""
    at = NOW + timedelta(hours=hours)
    assert accounts.sender("x", signed(at=at), STRANGER).account == "shop-orders"


@pytest.mark.parametrize("seconds", [-SKEW_S - 1, SKEW_S + 1])
def test_a_date_of_another_day_is_not_believed(accounts: Accounts, seconds: int) -> None:
    text = refusal(accounts, signed(at=NOW + timedelta(seconds=seconds)))
    assert f"{SKEW_S + 1} s from the proxy's clock" in text
    assert "no date" in refusal(accounts, signed(date="yesterday"))


def test_rights_are_those_of_the_brokers(accounts: Accounts) -> None:
    sender = accounts.sender("x", signed(), STRANGER)
    assert accounts.why_not(sender, to_send(["orders"])) is None
    assert accounts.why_not(sender, to_consume("billing", ["payments"])) is None
    for needs, text in (
        (to_send(["orders", "payments"]), "topic:payments"),
        (to_send(["other"]), "topic:other"),
        (to_consume("billing", ["orders"]), "topic:orders"),
        (to_consume("other", ["payments"]), "group:other"),
    ):
        with pytest.raises(CallRefusedError, match=f"No default permission for {text}") as refused:
            accounts.check("x", sender, needs)
        assert refused.value.code is Code.FORBIDDEN


def test_addresses_that_need_no_signature(accounts: Accounts) -> None:
    anybody = accounts.sender("x", {}, "10.9.0.3:1")
    assert accounts.why_not(anybody, to_send(["other"])) is None
    inside = accounts.sender("x", signed("insider", "wrong-secret"), "10.8.0.1:1")
    assert accounts.why_not(inside, to_send(["other"])) is None
    assert "failed" in refusal(accounts, signed("insider", "wrong-secret"), "10.8.0.2:1")


def test_an_account_that_is_gone_may_nothing(accounts: Accounts, tmp_path: Path) -> None:
    sender = accounts.sender("x", signed(), STRANGER)
    path = tmp_path / "plain_acl.yml"
    path.write_text(RULES.replace("shop-orders", "shop-others"))
    accounts.rules = RuleFiles(path).read()
    assert accounts.why_not(sender, to_send(["orders"])) == "No acl config for shop-orders"


def test_without_rules_everybody_may() -> None:
    accounts = Accounts(None)
    sender = accounts.sender("x", {}, STRANGER)
    assert accounts.why_not(sender, to_send(["T"])) is None
