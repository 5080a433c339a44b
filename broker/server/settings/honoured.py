"""Keys of broker.conf that do what they say, with their meaning. Data only.

Ranges and defaults stand where they are read (broker/server/config.py); the page of keys shows both.
"""

from __future__ import annotations

from typing import Final

from broker.settings.keys import ANY_HOSTS, HonouredKey, Scope, flag, number, text
from broker.settings.tls import PEER_KEYS, TLS_KEYS

_OF_MEMBERS: Final = (
    HonouredKey(
        text("dLegerGroup", ""),
        "the Raft group (`--group`); also the broker name in routes",
        shown_default="`brokerName`",
        is_strict=True,
    ),
    HonouredKey(
        text("dLegerSelfId", ""),
        "this node (`--id`), one of the ids in `dLegerPeers`",
        shown_default="n0, without `dLegerPeers`",
        is_strict=True,
    ),
    HonouredKey(
        text("dLegerPeers", ""),
        "all members (`--peers`), `id-host:port;id-host:port`, at most 9; the ids are those of the group's first "
        "start, or of now ([members.md](members.md)); addresses may change. Without it and the two above a node is a "
        "group of its own: see [configuration.md](configuration.md)",
        shown_default="this node, at port `listenPort` + 10000 of 127.0.0.1",
        is_strict=True,
    ),
    HonouredKey(
        flag("raftJoin"),
        "true (`--join`): the group exists, and `dLegerPeers` names members to find it by, and this node, which waits "
        "to be added ([members.md](members.md)) and begins no group of its own",
        is_strict=True,
    ),
    HonouredKey(
        flag("enableDLegerCommitLog", "false"),
        "true: `dLegerGroup`, `dLegerSelfId` and `dLegerPeers` must be there; false: they must not be",
        shown_default="whether they are there",
        is_strict=True,
    ),
    HonouredKey(
        text("preferredLeaderId", ""),
        "node that should lead while it can, and its disk is not slow; several, with `;`, in this order",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        number("inSyncReplicas", None, "1"),
        "checked only: an acknowledged send is on a majority of the members; more copies than that are refused",
        unit="members",
        is_strict=True,
    ),
    HonouredKey(
        number("minInSyncReplicas", None, "1"),
        "the same",
        unit="members",
        is_strict=True,
    ),
    HonouredKey(
        text("secret"),
        "shared by all members and log clients; better `--secret-file`, which keeps it out of this file",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        flag("aclEnable", "false"),
        "true: requests of clients need a signature, and are checked against the rights of their account "
        "([acl.md](acl.md)); with several members it needs a `secret`",
        is_strict=True,
    ),
    HonouredKey(
        text("aclFile"),
        "where accounts stand, read again when it changes; files in the folder `acl` beside it count as well. Beside "
        "broker.conf unless it is absolute",
        is_strict=True,
    ),
)

_OF_ELECTIONS: Final = (
    HonouredKey(
        number("raftHeartbeatIntervalMs"),
        "pause between a leader's heartbeats; at most half of `raftLeaseMs`",
        unit="milliseconds",
        is_strict=True,
    ),
    HonouredKey(
        number("raftLeaseMs"),
        "for so long after its answer a follower supports no other candidate; a leader answers reads by itself for "
        "nine tenths of it (the rest is for clocks of different speeds). At most `raftElectionTimeoutMinMs`. Equal on "
        "all members, which refuse each other otherwise: to change it, stop all of them",
        unit="milliseconds",
        is_strict=True,
    ),
    HonouredKey(
        number("raftElectionTimeoutMinMs"),
        "shortest silence of a leader after which a follower asks for votes, drawn anew each time; longer where the "
        "network or the machines stand still for longer than this",
        unit="milliseconds",
        is_strict=True,
    ),
    HonouredKey(
        number("raftElectionTimeoutMaxMs"),
        "longest such silence; a leader that misses its majority for so long steps down. Above the shortest by at "
        "least `raftHeartbeatIntervalMs`",
        unit="milliseconds",
        is_strict=True,
    ),
    HonouredKey(
        number("raftTransferTimeoutMs"),
        "a hand-over of leadership that takes longer is given up",
        unit="milliseconds",
        is_strict=True,
    ),
    HonouredKey(
        number("raftSlowDiskMs"),
        "a leader that needs so long to make an entry durable, again and again, hands over to a member with a much "
        "faster disk ([adr/0102](adr/0102-a-leader-with-a-slow-disk-hands-over.md))",
        unit="milliseconds",
        is_strict=True,
    ),
)

_OF_ADDRESSES: Final = (
    HonouredKey(text("brokerClusterName", "DefaultCluster"), "cluster in routes (`--cluster`)"),
    HonouredKey(
        text("brokerName", "the host's name"),
        "name in routes; must be equal on all nodes of the group, and no other group may have it",
        shown_default="`dLegerGroup`",
        is_strict=True,
    ),
    HonouredKey(
        text("brokerIP1", "the host's address"),
        "address that is announced to clients; IPv4",
        shown_default="the listen host",
        is_strict=True,
    ),
    HonouredKey(
        number("listenPort", "10911"),
        "where clients connect (`--listen`)",
        is_strict=True,
    ),
    HonouredKey(
        text("bindAddress", None, ANY_HOSTS[0]),
        "address to listen on (`--listen`)",
        shown_default="`brokerIP1`, else the host of the own peer",
        is_strict=True,
    ),
    HonouredKey(
        text("vipListenEnable"),
        "also serve `listenPort` - 2, which the dashboard and Java clients 4.3 and 4.4 dial by default; `auto`: if it "
        "is free and no member's",
    ),
    HonouredKey(
        text("namesrvAddr", ""),
        "name servers (`--namesrv`), `host:port;host:port`",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        number("registerNameServerPeriod", "30000"), "between registrations", unit="milliseconds"
    ),
    HonouredKey(
        number("stopForwardSec"),
        "for so long after it has led, a node that is asked to stop goes on for clients whose route is old; "
        "0: not at all",
        unit="seconds",
        scope=Scope.NODE,
    ),
)

_OF_THE_LOG: Final = (
    HonouredKey(
        text("storePathRootDir", "$HOME/store"),
        "this node's data (`--store`); one process at a time",
        shown_default="`$HOME/dledger-store/` and the broker's name, for a group of its own; else required",
        is_strict=True,
    ),
    HonouredKey(
        text("flushDiskType", "ASYNC_FLUSH"),
        "`ASYNC_FLUSH` acknowledges before fsync: a power cut on a majority may lose acknowledged messages",
        is_strict=True,
    ),
    HonouredKey(
        number("mappedFileSizeCommitLog", "1073741824"),
        "size of a log segment; may differ between nodes and change",
        unit="bytes",
    ),
    HonouredKey(
        number("snapshotLogBytes"),
        "growth of the log after which a snapshot of the state is written (and twice that one's size); 0: never",
        unit="bytes",
    ),
    HonouredKey(
        number("scrubBytesPerSecond"),
        "how much of the log is read in the background to find silent damage while others can mend it "
        "([repair.md](repair.md)); 0: nothing",
        unit="bytes",
    ),
    HonouredKey(
        number("readCacheBytesMax"),
        "old messages kept in memory once they were read from the disk, for all who read them; the newest 64 MiB of "
        "the log are there in any case",
        unit="bytes",
    ),
    HonouredKey(
        number("catchUpBytesMax"),
        "how much of what is due to be deleted a leader keeps for a connected member that lacks it; one that lacks "
        "more gets the newest snapshot, and then the log from where it begins now",
        unit="bytes",
    ),
    HonouredKey(
        number("catchUpBytesPerSecond"),
        "how fast this node, leading, reads from its disk what a member lacks, for each such member; half as fast "
        "while the log grows, but at least twice as fast as it does, and without a bound where the group can commit "
        "nothing before; 0: as fast as it can",
        unit="bytes",
    ),
    HonouredKey(
        number("snapshotFetchBytesPerSecond"),
        "how fast this member takes another one's snapshot; 0: as fast as it comes",
        unit="bytes",
    ),
    HonouredKey(
        number("maxMessageSize", "4194304"),
        "largest message body",
        unit="bytes",
        scope=Scope.GROUP,
    ),
)

_OF_RETENTION: Final = (
    HonouredKey(
        number("fileReservedTime", "72"),
        "age at which messages are due to be deleted, by segments of the log: the youngest message of a segment "
        "decides ([retention.md](retention.md))",
        unit="hours",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        text("deleteWhen", "04"),
        "hours of the local day, with `;`, in which what is due is deleted",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("retentionSeconds"),
        "as `fileReservedTime` and instead of it, and what is due is deleted at any hour; 0: not used",
        unit="seconds",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("retentionBytes"),
        "size to which the kept log is held, whatever the age of what goes; the newest segment always stays; 0: any",
        unit="bytes",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("cleanResourceInterval", "10000"),
        "between two looks of the leader for what is due",
        unit="milliseconds",
    ),
    HonouredKey(
        number("diskMaxUsedSpaceRatio", "75"),
        "share of a member's disk in use above which what is due is deleted at any hour; taken as 10 to 95",
        unit="percent",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        flag("cleanFileForciblyEnable", "true"),
        "whether `diskSpaceCleanForciblyRatio` holds",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("diskSpaceCleanForciblyRatio", None, "85"),
        "share above which the oldest segment is deleted whatever its age, one after the other; taken as 30 to 85. In "
        "4.9 it is a property of the Java process",
        unit="percent",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("diskSpaceWarningLevelRatio", None, "90"),
        "share above which sends are refused with code 14; taken as 35 to 90. In 4.9 as above",
        unit="percent",
        is_strict=True,
        scope=Scope.GROUP,
    ),
)

_OF_TOPICS: Final = (
    HonouredKey(
        flag("autoCreateTopicEnable", "true"),
        "a send creates its topic from TBW102",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        flag("autoCreateSubscriptionGroup", "true"),
        "a consumer creates its group",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("defaultTopicQueueNums", "8"), "queues of TBW102; clients ask for 4 of them"
    ),
    HonouredKey(
        flag("traceTopicEnable", "false"),
        "true: the topic of message trace is created, with one queue ([trace.md](trace.md)); false: it is not, and who "
        "sends to RMQ_SYS_TRACE_TOPIC gets code 17",
    ),
    HonouredKey(
        text("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC"),
        "what it is called; clients with another one name it themselves, and it needs no key",
    ),
    HonouredKey(
        text("messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
        "delays of level 1, 2, ...; equal on all nodes",
    ),
    HonouredKey(
        flag("timerWheelEnable", None, "true"),
        "messages may have due times of their own; false: code 1",
        is_strict=True,
    ),
    HonouredKey(
        number("timerMaxDelaySec", None, "259200"),
        "how far ahead a due time may lie; farther: code 13",
        unit="seconds",
        scope=Scope.GROUP,
    ),
    HonouredKey(
        flag("recallMessageEnable", None, "false"),
        "such messages may be taken back until they are delivered; false: code 16",
        is_strict=True,
    ),
    HonouredKey(
        flag("recognizeRepeatedSends"),
        "a send that was stored before, and whose answer was lost, is answered with the earlier result; false: every "
        "send is stored",
    ),
    HonouredKey(
        flag("rejectTransactionMessage", "false"),
        "true: half messages are refused with code 16",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("transactionTimeOut", "6000"),
        "until a half message is checked first, unless it asks for another time",
        unit="milliseconds",
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("transactionCheckInterval", "60000", "30000"),
        "between two checks of an open transaction",
        unit="milliseconds",
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("transactionCheckMax", "15"),
        "checks before an open transaction is given up and its message moves to TRANS_CHECK_MAX_TIME_TOPIC",
        scope=Scope.GROUP,
    ),
)

_OF_SERVICE: Final = (
    HonouredKey(
        number("brokerPermission", "6"),
        "4 read, 2 write",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        flag("longPollingEnable", "true"),
        "false: an empty pull waits 1 s instead of the time the client asks for",
        scope=Scope.GROUP,
    ),
    HonouredKey(
        flag("enablePropertyFilter", "false"),
        "consumers may choose messages by their properties, in SQL92 ([filter.md](filter.md)); false: they are told "
        "that they may not ([adr/0232](adr/0232-property-filters-are-on.md))",
        is_strict=True,
        scope=Scope.GROUP,
    ),
    HonouredKey(
        flag("slaveReadEnable", "false"),
        "consumers that read far behind the log's end are sent to a follower "
        "([adr/0175](adr/0175-backlogs-are-read-from-followers.md)); false: everything is read from the leader",
        scope=Scope.GROUP,
    ),
    HonouredKey(
        number("accessMessageInMemoryMaxRatio", "40"),
        "how far behind that is: more bytes of the log than this share of the machine's memory; such a pull gets at "
        "most what the two keys with `InDisk` say, others what those with `InMemory` say",
        unit="percent",
    ),
    HonouredKey(
        number("maxTransferCountOnMessageInMemory", "32"),
        "messages that one pull, or pop, gets at most; no more than it asks for",
    ),
    HonouredKey(
        number("maxTransferBytesOnMessageInMemory", "262144"),
        "how much it gets at most, but for its first message",
        unit="bytes",
    ),
    HonouredKey(
        number("maxTransferCountOnMessageInDisk", "8"),
        "the same of messages far behind the log's end: more than 8 spare a reader of a backlog many pulls, and each "
        "of them keeps the loop for longer",
    ),
    HonouredKey(
        number("maxTransferBytesOnMessageInDisk", "65536"),
        "the same of messages far behind the log's end",
        unit="bytes",
    ),
    HonouredKey(
        text("configBlackList", "configBlackList;brokerConfigPath"),
        "keys that `mqadmin updateBrokerConfig` may not change, `key;key`",
        is_strict=True,
    ),
    HonouredKey(text("regionId", "DefaultRegion"), "what producers get in the answer to a send"),
    HonouredKey(flag("traceOn", "true"), "the same"),
)

_OF_FIGURES: Final = (
    HonouredKey(
        text("metricsExporterType", None, "DISABLE"),
        "`PROM`: figures for Prometheus, and whether the node is ready, are given over HTTP "
        "([operations.md](operations.md)); `DISABLE`: not; `2` and `0` are the same. RocketMQ's other exporters are "
        "refused",
        is_strict=True,
    ),
    HonouredKey(
        text("metricsPromExporterHost", None, ""),
        "address of that port. Nobody is asked who he is there: what it gives is for all who reach it",
        shown_default="127.0.0.1; in RocketMQ it is `brokerIP1`",
        is_strict=True,
    ),
    HonouredKey(
        number("metricsPromExporterPort", None, "5557"),
        "its port; 0: any that is free",
        is_strict=True,
    ),
    HonouredKey(
        number("metricsOtelCardinalityLimit", None, "50000"),
        "series of one figure that are given, such as one for each topic; those beyond are counted "
        "(`dledger_metrics_left_out_series`)",
    ),
)

_OF_BOUNDS: Final = (
    HonouredKey(
        number("sendThreadPoolQueueCapacity", "10000"),
        "sends, locks and other changes that may wait for their commit; over it: code 2, `[OVERLOAD]system busy`",
    ),
    HonouredKey(
        number("stagedBytesMax"),
        "the same in bytes; also of what a follower has on its way to the leader (there at most 32 MiB)",
        unit="bytes",
    ),
    HonouredKey(
        number("pullThreadPoolQueueCapacity", "100000"), "pulls that may wait for a message"
    ),
    HonouredKey(
        number("transactionOpenMax"),
        "open transactions; over it half messages get code 2, `[OVERLOAD]system busy`",
    ),
    HonouredKey(
        number("connectionsMax"),
        "client connections; fewer where the process may have fewer file descriptors (`ulimit -n`), "
        "of which 256, or a quarter, are kept for the store",
    ),
    HonouredKey(
        number("unfinishedFramesBytesMax"),
        "request frames over 16 KiB that have begun and not ended, of all connections together. A frame gets its room "
        "whole before it is read on. Frames for which there is none wait, with at most 16 KiB each in memory; while "
        "some wait, connections whose frames grow by less than 128 KiB in half a second are closed. What has no room "
        "is at most a quarter of this, besides: once so many connections hold a part of a frame, others need room "
        "from 1 KiB on, and hold at most 2 KiB without it",
        unit="bytes",
    ),
    HonouredKey(
        number("outputBytesMax"),
        "unsent answers of one connection; a client that reads more slowly is cut off. Those of all connections are "
        "at most four times as many: beyond that, who has read nothing for the longest is cut off",
        unit="bytes",
    ),
)

HONOURED: Final = {
    "Members": _OF_MEMBERS,
    "Heartbeats, lease and elections": _OF_ELECTIONS,
    "Addresses and routes": _OF_ADDRESSES,
    "Log and disk": _OF_THE_LOG,
    "Retention": _OF_RETENTION,
    "Topics and messages": _OF_TOPICS,
    "Service": _OF_SERVICE,
    "Figures": _OF_FIGURES,
    "Bounds": _OF_BOUNDS,
    "TLS": (*TLS_KEYS, *PEER_KEYS),
}
"""The keys by what they are about."""
