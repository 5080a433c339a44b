"""mqadmin of Apache RocketMQ, unmodified, against a group of ours: its subcommands, and what each has to show.

`Mqadmin` runs them in one virtual machine; `CALLS` says with which words. Names in braces stand for what the group has
(`Scene`). It must know nothing of the servers that are spoken to.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from dledger_mq import Message, ReceivedMessage
from dledger_mq.blocking import Producer, PushConsumer
from jepsen.processes import poll
from tests.interop.conftest import WAIT_S, request

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ("4.9.8", "5.3.3")
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx192m")
TOPIC, GROUP, OFFLINE, PRODUCER = "mqadmin-T", "mqadmin-G", "mqadmin-offline", "mqadmin-P"
MESSAGES = 8
TRIES = 12

_TOO_BUSY = ("RemotingTimeoutException", "RemotingConnectException")
_CODE = re.compile(r"CODE: (\d+) +DESC: (.*?)(?: BROKER: \S+)?$", re.MULTILINE)
_TROUBLE = re.compile(r"^(?:Caused by: )?(\S*(?:Exception|Error))(?:: (.*))?$", re.MULTILINE)


class Verdict(Enum):
    """What came of a subcommand."""

    WORKS = "works"
    REFUSED = "refused"
    FAILED = "does not work"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Call:
    """One subcommand.

    Attributes:
        name: of the subcommand.
        words: what stands after it, with names of a `Scene` in braces.
        shows: a pattern of what it prints when it works.
        not_run: why it is not run; then the rest does not matter.
        only: the release that is meant; empty: both.
        remark: for people.
    """

    name: str
    words: str = ""
    shows: str = ""
    not_run: str = ""
    only: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a group has to be asked for: addresses, names, a message that was sent, files to write."""

    namesrv: str
    broker: str
    name: str
    cluster: str
    offset_id: str
    uniq: str
    folder: Path

    def words(self, call: Call) -> list[str]:
        """Return the words of a call."""
        values = {
            "broker": self.broker,
            "name": self.name,
            "cluster": self.cluster,
            "offset_id": self.offset_id,
            "uniq": self.uniq,
            "folder": str(self.folder),
            "namesrv": self.namesrv,
            "topic": TOPIC,
            "group": GROUP,
            "offline": OFFLINE,
            "producer": PRODUCER,
        }
        return [
            call.name,
            "-n",
            self.namesrv,
            *(word.format_map(values) for word in call.words.split()),
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call, and a sentence about it."""

    verdict: Verdict
    sentence: str = ""


def outcome_of(call: Call, printed: str) -> Outcome:
    """Judge what a call has printed; codes may also stand in what a subcommand shows of others' troubles."""
    if "SubCommandException" not in printed and re.search(call.shows, printed):
        return Outcome(Verdict.WORKS)
    if code := _CODE.search(printed):
        return Outcome(Verdict.REFUSED, f"{code[1]}: {code[2].strip()}")
    if trouble := list(_TROUBLE.finditer(printed)):
        cause = trouble[-1]
        return Outcome(Verdict.FAILED, f"{cause[1].rpartition('.')[2]}: {cause[2] or ''}".strip())
    first = next(iter(printed.strip().splitlines()), "nothing")
    return Outcome(Verdict.FAILED, f"prints {first.strip()}")


class Mqadmin:
    """One release of mqadmin, in one virtual machine."""

    def __init__(self, jars: Path, classes: Path, home: Path) -> None:
        """Set up a run; `classes` has the compiled driver, and `home` is for what the tool writes."""
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        path = f"{classes}:{jars}/*"
        properties = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}")
        self._command = ["java", *OPTIONS, *properties, "-cp", path, "MqAdmin"]
        self._home = home

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._home,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, words: list[str]) -> str:
        """Run one subcommand and return what it printed; again if the machine was too busy for its 3 s or 5 s."""
        for _ in range(TRIES):
            printed = self._run(words)
            if not any(each in printed for each in _TOO_BUSY):
                break
        return printed

    def _run(self, words: list[str]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the virtual machine has ended at {words}"
        return base64.b64decode(answer).decode(errors="replace")

    def names(self) -> list[str]:
        """Return the names of all subcommands."""
        listed = self.run([])
        return re.findall(r"^   (\w+) ", listed, re.MULTILINE)


def consumed_count(broker: str, group: str) -> int:
    """Return how many messages a group has consumed of the topic."""
    _, body = request(broker, 208, {"consumerGroup": group, "topic": TOPIC})
    return sum(max(0, int(each)) for each in re.findall(rb'"consumerOffset":(-?\d+)', body))


def has_told(client: Producer | PushConsumer) -> bool:
    """Return whether a client waits with no record of its trace, and had some."""
    told = client.statistics().trace
    return told is not None and not told.waiting and told.written + told.dropped > 0


@contextmanager
def scene(
    namesrv: str, broker: str, name: str, cluster: str, folder: Path, *, trace: bool = False
) -> Iterator[Scene]:
    """Send some messages and keep a producer and a consumer connected, which may write traces; the topic is there."""
    taken: list[ReceivedMessage] = []
    topics = {TOPIC: "*"}
    with (
        Producer(namesrv, group=PRODUCER, trace=trace, timeout_s=WAIT_S) as producer,
        PushConsumer(namesrv, GROUP, taken.append, subscriptions=topics, trace=trace) as consumer,
    ):
        sent = [
            producer.send(Message(TOPIC, b"body %d" % number, keys=(f"key{number}",), tags="tag"))
            for number in range(MESSAGES)
        ]
        assert poll(lambda: consumed_count(broker, GROUP) >= MESSAGES, WAIT_S), (
            "nobody has consumed"
        )
        if trace:
            assert poll(lambda: has_told(producer) and has_told(consumer), WAIT_S), (
                "no trace is there"
            )
        yield Scene(namesrv, broker, name, cluster, sent[0].message_id, sent[0].unique_key, folder)


def calls_for(release: str, names: list[str]) -> list[Call]:
    """Return a call for each subcommand of a release, in its order."""
    known = {call.name: call for call in CALLS if call.only in ("", release)}
    return [known.get(name, Call(name, not_run="?")) for name in names]


_ENDLESS = "it runs until it is stopped"
_LOCAL = "it reads files of a RocketMQ broker on the machine, and asks nobody"
CALLS: tuple[Call, ...] = (
    Call("updateTopic", "-c {cluster} -t mqadmin-made -r 4 -w 4", r"create topic to \S+ success"),
    Call("updateTopicList", "-c {cluster} -f {folder}/topics.json", r"submit batch of topic"),
    Call("deleteTopic", "-c {cluster} -t mqadmin-made", r"delete topic \[mqadmin-made\].*success"),
    Call(
        "updateSubGroup", "-c {cluster} -g {offline}", r"create subscription group to \S+ success"
    ),
    Call(
        "updateSubGroupList",
        "-c {cluster} -f {folder}/groups.json",
        r"submit batch of subscription",
    ),
    Call(
        "setConsumeMode", "-b {broker} -t {topic} -g {group} -m PULL -q 0", r"set consume mode to"
    ),
    Call("deleteSubGroup", "-c {cluster} -g mqadmin-gone", r"delete subscription group.*success"),
    Call("updateBrokerConfig", "-b {broker} -k transactionCheckMax -v 14", "success"),
    Call("updateTopicPerm", "-c {cluster} -t {topic} -p 6", "perm"),
    Call("topicRoute", "-t {topic}", '"brokerDatas"'),
    Call("topicStatus", "-t {topic}", r"{name}|broker"),
    Call("topicClusterList", "-t {topic}", r"\w+"),
    Call("brokerStatus", "-b {broker}", "brokerVersionDesc"),
    Call("queryMsgById", "-i {offset_id}", "OffsetID:", only="4.9.8"),
    Call("queryMsgById", "-t {topic} -i {offset_id}", "OffsetID:", only="5.3.3"),
    Call("queryMsgByKey", "-t {topic} -k key0", r"[0-9A-F]{32}"),
    Call("queryMsgByUniqueKey", "-t {topic} -i {uniq}", "Store Host:"),
    Call("queryMsgByOffset", "-t {topic} -b {name} -i 0 -o 0", "OffsetID:"),
    Call(
        "queryMsgTraceById",
        "-i {uniq}",
        "#Type",
        remark="with `traceTopicEnable`, of clients that write traces",
    ),
    Call("printMsg", "-t {topic}", "MSGID:"),
    Call("printMsgByQueue", "-t {topic} -a {name} -i 0 -p true", "MSGID:"),
    Call("sendMsgStatus", "-b {name} -c 2", "SEND_OK"),
    Call("brokerConsumeStats", "-b {broker}", "Diff Total"),
    Call("producerConnection", "-g {producer} -t {topic}", "V4_9_8"),
    Call("consumerConnection", "-g {group}", "V4_9_8"),
    Call("consumerProgress", "-g {group}", "Diff Total"),
    Call("consumerStatus", "-g {group} -s", "V4_9_8"),
    Call("cloneGroupOffset", "-s {group} -d {offline} -t {topic}", "clone group offset success"),
    Call("producer", "-b {broker}", "producer group"),
    Call("clusterList", "", r"#Cluster Name"),
    Call("topicList", "", TOPIC),
    Call("updateKvConfig", "-s mqadmin -k a -v b", "create or update kv config"),
    Call("deleteKvConfig", "-s mqadmin -k a", "delete kv config"),
    Call("wipeWritePerm", "-b {name}", "wipe write perm"),
    Call("addWritePerm", "-b {name}", "add write perm"),
    Call("resetOffsetByTime", "-g {offline} -t {topic} -s 0", r"#offset"),
    Call("skipAccumulatedMessage", "-g {offline} -t {topic}", "#offset"),
    Call("updateOrderConf", "-m put -t {topic} -v {name}:4", "update orderConf"),
    Call("cleanExpiredCQ", "-b {broker}", "success"),
    Call("deleteExpiredCommitLog", "-b {broker}", "success"),
    Call("cleanUnusedTopic", "-b {broker}", "success"),
    Call("startMonitoring", not_run=_ENDLESS),
    Call("statsAll", "-t {topic}", "#Topic"),
    Call("allocateMQ", "-t {topic} -i 127.0.0.1", '"result"'),
    Call("checkMsgSendRT", "-t {topic} -a 2", "Avg RT"),
    Call("clusterRT", not_run=_ENDLESS),
    Call("getNamesrvConfig", "", "listenPort|="),
    Call("updateNamesrvConfig", "-k deleteTopicWithBrokerRegistration -v false", "success"),
    Call("getBrokerConfig", "-b {broker}", "brokerName"),
    Call("getConsumerConfig", "-g {group}", "groupName|consumeEnable"),
    Call("queryCq", "-t {topic} -q 0 -i 0 -b {broker}", "maxQueueIndex|======"),
    Call("sendMessage", "-t {topic} -p body", "SEND_OK"),
    Call("consumeMessage", "-t {topic} -b {name} -i 0 -o 0 -c 1", "MSGID:|Consume ok"),
    Call("updateStaticTopic", "-c {cluster} -t mqadmin-static -qn 2", "success"),
    Call("remappingStaticTopic", not_run="there are no static topics to be moved"),
    Call("updateAclConfig", "-b {broker} -a mqadmin-key -s 12345678", "success"),
    Call("deleteAclConfig", "-b {broker} -a mqadmin-key", "success"),
    Call(
        "clusterAclConfigVersion",
        "-b {broker}",
        "#ClusterName|get cluster's plain access config version success",
    ),
    Call("updateGlobalWhiteAddr", "-b {broker} -g 127.0.0.1", "success"),
    Call("exportMetadata", "-c {cluster} -f {folder}", "export .* success"),
    Call("exportConfigs", "-c {cluster} -f {folder}", "export .* success"),
    Call("exportMetrics", "-c {cluster} -f {folder}", "export .* success"),
    Call("exportMetadataInRocksDB", not_run=_LOCAL),
    Call("exportPopRecord", "-b {broker}", "success"),
    Call("haStatus", "-b {broker}", "#InSyncSlaveNum"),
    Call("getSyncStateSet", "-a {namesrv} -b {name}", "#SyncStateSet"),
    Call("getBrokerEpoch", "-b {name}", "#Epoch"),
    Call("getControllerMetaData", "-a {namesrv}", "#ControllerGroup"),
    Call("getControllerConfig", "-a {namesrv}", "="),
    Call("updateControllerConfig", "-a {namesrv} -k a -v b", "success"),
    Call("electMaster", "-a {namesrv} -b 1 -bn {name} -c {cluster}", "#ClusterName"),
    Call("cleanBrokerMetadata", "-a {namesrv} -b 1 -bn {name} -c {cluster}", "success"),
    Call("addBroker", "-c {broker} -b {folder}/broker.conf", "success"),
    Call("removeBroker", "-c {broker} -b {cluster}:{name}:1", "success"),
    Call("resetMasterFlushOffset", "-b {broker} -o 0", "success"),
    Call("dumpCompactionLog", not_run=_LOCAL),
    Call("getColdDataFlowCtrInfo", "-b {broker}", "="),
    Call("updateColdDataFlowCtrGroupConfig", "-b {broker} -g {group} -v 1", "success"),
    Call("removeColdDataFlowCtrGroupConfig", "-b {broker} -g {group}", "success"),
    Call("setCommitLogReadAheadMode", "-b {broker} -m 1", "success"),
    Call("createUser", "-b {broker} -u mqadmin -p 12345678", "success"),
    Call("updateUser", "-b {broker} -u mqadmin -p 87654321", "success"),
    Call("getUser", "-b {broker} -u mqadmin", "#UserName"),
    Call("listUser", "-b {broker}", "#UserName"),
    Call("copyUser", "-f {broker} -t {broker} -u mqadmin", "success"),
    Call("createAcl", "-b {broker} -s User:mqadmin -r Topic:{topic} -a Pub -d Allow", "success"),
    Call("updateAcl", "-b {broker} -s User:mqadmin -r Topic:{topic} -a Sub -d Allow", "success"),
    Call("getAcl", "-b {broker} -s User:mqadmin", "#Subject"),
    Call("listAcl", "-b {broker}", "#Subject"),
    Call("copyAcl", "-f {broker} -t {broker} -s User:mqadmin", "success"),
    Call("deleteAcl", "-b {broker} -s User:mqadmin", "success"),
    Call("deleteUser", "-b {broker} -u mqadmin", "success"),
    Call("rocksDBConfigToJson", "-c {cluster} -t topics", "success"),
    Call("checkRocksdbCqWriteProgress", "-c {cluster}", "success"),
)
"""In the order of the lists; subcommands that need what another has made stand behind it."""
