"""Clients that sign, against a group and a name server that let accounts in only: Java's, C++'s, and our own tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.admin.cli import main as dledger_admin
from dledger_mq import ClientError, Credentials, read_credentials
from dledger_mq.blocking import Admin
from jepsen.processes import SMALL_SEGMENTS, Group, poll
from tests.integration.commands import Ended, run_here
from tests.interop.conftest import TOOLS_4, ForeignClient, Listener, lacking, received, sent

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COUNT = 12
PATIENCE_S = 240.0
TOPICS = {"java-4.9.8": "java", "cpp": "cpp"}
"""Of each kind of client, and the name of its consumer group."""

OPERATOR = Credentials("operators", "3b7f60c8d21a45")
RULES = """
accounts:
- {accessKey: operators, secretKey: 3b7f60c8d21a45, admin: true}
- {accessKey: java-4.9.8, secretKey: secret-of-java, topicPerms: [java=PUB|SUB], groupPerms: [java=SUB]}
- {accessKey: cpp-client, secretKey: secret-of-cpp, topicPerms: [cpp=PUB|SUB], groupPerms: [cpp=SUB]}
"""
SECRETS = {"java-4.9.8": ("java-4.9.8", "secret-of-java"), "cpp": ("cpp-client", "secret-of-cpp")}


class GuardedGroup:
    """A broker and a name server with access control."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rules = folder / "plain_acl.yml"
        rules.write_text(RULES)
        rules.chmod(0o600)
        keys = f"aclEnable=true\naclFile={rules}\n"
        conf = folder / "namesrv.conf"
        conf.write_text(keys)
        self.processes = Group(folder / "group", nodes=1, settings=SMALL_SEGMENTS + keys)
        for server in self.processes.name_servers:
            server.command += ["-c", str(conf)]
        self.namesrv = self.processes.namesrv

    def keys(self, access_key: str, secret_key: str) -> str:
        """A file of credentials."""
        path = self.folder / f"{access_key}-{secret_key}.yml"
        path.write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")
        return str(path)

    def makes(self, *topics: str) -> bool:
        """Whether an administrator gets the topics made."""
        try:
            with Admin(self.namesrv, credentials=OPERATOR, timeout_s=PATIENCE_S) as admin:
                for topic in topics:
                    admin.create_topic(topic)
                return bool(admin.list_topics())
        except ClientError:
            return False

    def messages(self, topic: str) -> int:
        """How many messages a topic has."""
        with Admin(self.namesrv, credentials=OPERATOR, timeout_s=PATIENCE_S) as admin:
            return admin.describe_topic(topic).messages

    def wait_messages(self, topic: str, count: int) -> None:
        """Wait until a topic has so many."""
        assert poll(lambda: self.messages(topic) >= count, PATIENCE_S), self.messages(topic)

    def tool(self, *words: str, keys: str | None = None) -> Ended:
        """Run `dledger-admin` to its end."""
        before = [] if keys is None else ["--credentials", keys]
        return run_here(dledger_admin, *before, *words, "-n", self.namesrv)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedGroup]:
    group = GuardedGroup(tmp_path_factory.mktemp("guarded"))
    with group.processes as processes:
        processes.start()
        processes.wait_listening()
        assert poll(lambda: group.makes(*TOPICS.values(), "nobodys"), PATIENCE_S), (
            "it makes no topics"
        )
        yield group


@pytest.fixture(params=TOPICS)
def signing(request: pytest.FixtureRequest, guarded: GuardedGroup) -> ForeignClient:
    if reason := lacking(request.param):
        pytest.skip(reason)
    if request.param != "cpp" and not list(TOOLS_4.glob("rocketmq-acl-*.jar")):
        pytest.skip("mqadmin 4.9.8, whose jars sign, is not installed (make interop)")
    return ForeignClient(request.param, guarded.namesrv)


def test_signed_messages_come_and_go(signing: ForeignClient, guarded: GuardedGroup) -> None:
    """Sends, a batch, and a consumer that retries, commits and gives back."""
    kind, topic = signing.kind, TOPICS[signing.kind]
    keys = ("--credentials", guarded.keys(*SECRETS[kind]))
    produced = []
    for options in ((), ("--batch", "4"), ("--oneway",)):
        # Java's first question for a route may take longer on a busy machine than the library waits.
        many = ("--count", str(COUNT), "--keep-going", "--steered")
        with Listener(signing.start("produce", "--topic", topic, *many, *options, *keys)) as said:
            found = sent(said.wait_summary())
            assert found, said.lines
            produced += found
            # It stays: what is sent one way may leave later than it says.
            guarded.wait_messages(topic, len(produced))
    consumed = signing.run(
        "consume", "--topic", topic, "--group", topic, "--count", str(len(produced)),
        "--timeout", "200", "--linger", "2", *keys,  # a library notes what was consumed after its listener is back
    )  # fmt: skip
    assert Counter(received(consumed)) == Counter(produced)

    def is_all_committed() -> bool:
        with Admin(guarded.namesrv, credentials=OPERATOR, timeout_s=PATIENCE_S) as admin:
            stored = admin.describe_group(topic).offsets
        return sum(at for queue, at in stored.items() if queue.topic == topic) >= len(produced)

    assert poll(is_all_committed, PATIENCE_S), "its commits are taken"


@pytest.mark.parametrize("wrong", ["secret", "topic", "nothing"])
def test_what_is_wrong_is_refused(
    signing: ForeignClient, guarded: GuardedGroup, wrong: str
) -> None:
    kind = signing.kind
    access_key, secret_key = SECRETS[kind]
    keys = guarded.keys(access_key, "of-somebody-else" if wrong == "secret" else secret_key)
    topic = "nobodys" if wrong == "topic" else TOPICS[kind]
    more = () if wrong == "nothing" else ("--credentials", keys)
    before = guarded.messages(topic)
    child = signing.start("produce", "--topic", topic, "--count", "1", *more)
    out, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 1, out
    assert guarded.messages(topic) == before


def test_our_tool_and_our_clients(guarded: GuardedGroup) -> None:
    operator = guarded.keys(OPERATOR.access_key, OPERATOR.secret_key)
    no_admin = guarded.keys(*SECRETS["cpp"])
    status = guarded.tool("status", keys=operator)
    assert status.returncode == 0, status.stderr
    made = guarded.tool("topics", "create", "-t", "of-the-tool", keys=operator)
    assert made.returncode == 0, made.stderr
    refused = guarded.tool("topics", "create", "-t", "of-a-stranger", keys=no_admin)
    assert refused.returncode == 1
    assert "Need admin permission for request code=17, but accessKey=cpp-client is not" in (
        refused.stdout + refused.stderr
    )
    stranger = guarded.tool("status")
    assert stranger.returncode == 3
    assert "No accessKey is configured (asked without credentials)" in (
        stranger.stdout + stranger.stderr
    )
    thief = guarded.tool("status", keys=guarded.keys("operators", "not-the-secret"))
    assert thief.returncode == 3
    assert "Check signature failed for accessKey=operators" in thief.stdout + thief.stderr
    with Admin(
        guarded.namesrv, credentials=read_credentials(operator), timeout_s=PATIENCE_S
    ) as admin:
        assert [name for name in admin.list_topics() if name.startswith("of-")] == ["of-the-tool"]
