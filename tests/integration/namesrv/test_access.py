"""A name server with access control: who asks for routes, who changes them, and who registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.namesrv.config import NameServerConfig
from broker.namesrv.errors import NameServerConfigError
from broker.namesrv.signing_secrets import SigningSecrets
from dledger_mq.remoting.registrant import NONCE_FIELD, PROOF_FIELD, registration_proof
from dledger_mq.remoting.registration import encode_registration, identity_ext
from dledger_mq.remoting.signature import SigningKey, sign
from dledger_mq.remoting.topic_config import WireDataVersion
from tests.integration.namesrv.test_server import LEADER, LOOPBACK, TOPICS, server_and_clients

RULES = """
accounts:
- {accessKey: anybody, secretKey: secret-of-a}
- {accessKey: admin-1, secretKey: secret-of-1, admin: true}
"""
SECRETS = {"anybody": "secret-of-a", "admin-1": "secret-of-1"}
VALUE = {"namespace": "N", "key": "k", "value": "v"}
REFUSED = 16


def signed(key: str, ext: dict[str, str]) -> dict[str, str]:
    return sign(ext, b"", access_key=key, key=SigningKey(SECRETS[key]))


async def test_clients_sign_and_administrators_change(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    config = NameServerConfig(listen=LOOPBACK, acl_file=file)
    async with server_and_clients(1, config) as (client,):
        codes = [
            (await client.register()).code,
            (await client.call(105, {"topic": "TopicA"})).code,
            (await client.call(105, signed("anybody", {"topic": "TopicA"}))).code,
            (
                await client.call(105, signed("anybody", {"topic": "TopicA"}) | {"topic": "TopicB"})
            ).code,
            (await client.call(106, {})).code,
            (await client.call(100, VALUE)).code,
            (await client.call(100, signed("anybody", VALUE))).code,
            (await client.call(100, signed("admin-1", VALUE))).code,
            (await client.call(101, signed("anybody", VALUE))).code,
            (await client.call(216, signed("anybody", {"topic": "TopicA"}))).code,
            (await client.call(205, signed("anybody", {"brokerName": "broker-a"}))).code,
            (await client.call(318, signed("anybody", {}))).code,
            (await client.call(216, signed("admin-1", {"topic": "TopicA"}))).code,
        ]
    assert codes == [
        0, REFUSED, 0, REFUSED, REFUSED, REFUSED, REFUSED, 0, 0, REFUSED, REFUSED, REFUSED, 0,
    ]  # fmt: skip


async def test_brokers_that_have_signed_ask_for_routes_and_for_nothing_else(tmp_path: Path) -> None:
    """They have no account, and share out the queues of all groups of a topic (400)."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    secrets = SigningSecrets({"broker-a": ("the group's",)})
    config = NameServerConfig(listen=LOOPBACK, acl_file=file, secrets=secrets)
    async with server_and_clients(2, config) as (broker, other):
        nonce = (await broker.register()).ext[NONCE_FIELD]
        before = await broker.call(105, {"topic": "TopicA"})
        ext, body = identity_ext(LEADER), encode_registration(WireDataVersion(1), TOPICS)
        proof = registration_proof("the group's", nonce, ext, body)
        codes = [
            (await broker.call(103, {**ext, PROOF_FIELD: proof}, body)).code,
            (await broker.call(105, {"topic": "TopicA"})).code,
            (await broker.call(106, {})).code,
            (await broker.call(100, VALUE)).code,
            (await other.call(105, {"topic": "TopicA"})).code,
        ]
    assert before.code == REFUSED
    assert codes == [0, 0, REFUSED, REFUSED, REFUSED]


async def test_it_does_not_start_without_its_rules(tmp_path: Path) -> None:
    config = NameServerConfig(listen=LOOPBACK, acl_file=tmp_path / "plain_acl.yml")
    with pytest.RaisesGroup(NameServerConfigError, flatten_subgroups=True) as caught:
        async with server_and_clients(1, config):
            pass
    assert "aclEnable=true" in str(caught.value.exceptions)
