"""The keys of namesrv.conf: RocketMQ's of 4.9.8 and 5.3.3, and what becomes of each. Data only."""

from __future__ import annotations

from typing import Final

from broker.settings.key_table import KeyTable
from broker.settings.keys import (
    ANY_HOSTS,
    HonouredKey,
    NeedlessKeys,
    RefusedKey,
    flag,
    number,
    text,
)
from broker.settings.netty import NETTY
from broker.settings.tls import TLS_KEYS, TLS_NEEDLESS, TLS_REFUSED

_OFF: Final = ("false",)
_ON: Final = ("true",)

HONOURED: Final = (
    HonouredKey(number("listenPort", "9876"), "where to listen (`--listen`)"),
    HonouredKey(text("bindAddress", None, ANY_HOSTS[0]), "address to listen on (`--listen`)"),
    HonouredKey(
        text("kvConfigPath", "$HOME/namesrv/kvConfig.json"),
        "its folder keeps configuration values (`--store`); the file itself is not used",
        shown_default="memory only",
    ),
    HonouredKey(
        flag("orderMessageEnable", "false"),
        "put the order configuration of a topic into its route",
    ),
    *TLS_KEYS,
    HonouredKey(
        flag("aclEnable"),
        "true: requests of clients and tools must be signed by an account of `aclFile`, and changes by an "
        "administrator ([acl.md](acl.md)); registrations of brokers have proofs of their own (`--secret-file`)",
    ),
    HonouredKey(
        text("aclFile"),
        "where accounts stand, as for a broker; beside namesrv.conf unless it is absolute",
        shown_default="plain_acl.yml",
    ),
)

REFUSED: Final = (
    *TLS_REFUSED,
    RefusedKey(
        text("socksProxyConfig", None, "{}"),
        ("{}", ""),
        "connections to other name servers go through no proxy; remove the line",
    ),
    RefusedKey(
        flag("enableControllerInNamesrv", None, "false"),
        _OFF,
        "the members of a group elect their leader without a controller; remove the line",
    ),
    RefusedKey(
        flag("clusterTest", "false"),
        _OFF,
        "routes of another environment are not asked for; remove the line",
    ),
    RefusedKey(
        flag("needWaitForService", None, "false"),
        _OFF,
        "routes are given as soon as brokers register; remove the line",
    ),
    RefusedKey(
        flag("deleteTopicWithBrokerRegistration", None, "false"),
        _OFF,
        "topics that a broker no longer names stay until they are deleted; remove the line",
    ),
    RefusedKey(
        flag("enableTopicList", None, "true"),
        _ON,
        "topics are listed to whoever asks; remove the line",
    ),
    RefusedKey(
        flag("enableAllTopicList", None, "true"),
        _ON,
        "topics are listed to whoever asks; remove the line",
    ),
)

NEEDLESS: Final = (
    NeedlessKeys(
        "Threads and queues",
        "one loop serves all requests, and bounds connections and what is unsent",
        (
            number("clientRequestThreadPoolNums", None, "8"),
            number("clientRequestThreadPoolQueueCapacity", None, "50000"),
            number("defaultThreadPoolNums", None, "16"),
            number("defaultThreadPoolQueueCapacity", None, "10000"),
            number("unRegisterBrokerQueueCapacity", None, "3000"),
        ),
    ),
    NeedlessKeys("Sockets", "sockets are not Netty's", NETTY),
    TLS_NEEDLESS,
    NeedlessKeys(
        "Files and tools",
        "there is no such file or tool here, and settings change by a start",
        (
            text("configBlackList", "configBlackList;configStorePath;kvConfigPath"),
            text("configStorePath", "$HOME/namesrv/namesrv.properties"),
            text("productEnvName", "center"),
            text("rocketmqHome", ""),
        ),
    ),
    NeedlessKeys(
        "Brokers that go",
        "who stops to register is found by its connection, and a follower stands in for a leader",
        (
            flag("notifyMinBrokerIdChanged", None, "false"),
            flag("returnOrderTopicConfigToBroker", None, "true"),
            number("scanNotActiveBrokerInterval", None, "5000"),
            flag("supportActingMaster", None, "false"),
            number("waitSecondsForService", None, "45"),
        ),
    ),
)

NAME_SERVER_KEYS: Final = KeyTable("docs/broker-conf.md", (*HONOURED, *REFUSED, *NEEDLESS))
