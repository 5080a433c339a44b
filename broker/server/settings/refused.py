"""Keys of broker.conf that are refused unless they ask for nothing, each with the reason. Data only.

What protects (access control, copies) is never passed over, also not with --lenient.
"""

from __future__ import annotations

from typing import Final

from broker.settings.keys import RefusedKey, flag, number, text
from broker.settings.tls import TLS_REFUSED

_OFF: Final = ("false",)
_NO_ACCESS_CONTROL: Final = (
    "users and rights of RocketMQ 5 are not supported, those of 4 are (aclEnable); remove the line"
)
_NO_ADDRESS: Final = "name servers are read from namesrvAddr only; name them there"

REFUSED: Final = (
    RefusedKey(flag("authenticationEnabled", None, "false"), _OFF, _NO_ACCESS_CONTROL),
    RefusedKey(flag("authorizationEnabled", None, "false"), _OFF, _NO_ACCESS_CONTROL),
    *TLS_REFUSED,
    RefusedKey(
        text("socksProxyConfig", None, "{}"),
        ("{}", ""),
        "connections to other brokers and name servers go through no proxy; remove the line",
    ),
    RefusedKey(
        text("brokerRole", "ASYNC_MASTER"),
        ("ASYNC_MASTER", "SYNC_MASTER"),
        "the group elects its leader, and a node with this role would make a second group of its master's name; remove "
        "the line and name the members in dLegerPeers",
        "a send is acknowledged once a majority of the members has it, and the members elect their leader",
    ),
    RefusedKey(
        flag("enableControllerMode", None, "false"),
        _OFF,
        "the members elect their leader without a controller; remove the line and name them in dLegerPeers",
    ),
    RefusedKey(
        flag("allAckInSyncStateSet", None, "false"),
        _OFF,
        "an acknowledged send is on a majority of the members, not on all; remove the line",
    ),
    RefusedKey(
        flag("asyncLearner", None, "false"), _OFF, "every member votes here; remove the line"
    ),
    RefusedKey(
        number("filterServerNums", "0", None),
        ("0",),
        "code of clients is not run here; filter by tags, or by properties with SQL92",
    ),
    RefusedKey(
        flag("enableLmq", "false"), _OFF, "light message queues are not supported; remove the line"
    ),
    RefusedKey(
        flag("enableMultiDispatch", "false"),
        _OFF,
        "a message goes to one queue here, not to several; remove the line",
    ),
    RefusedKey(
        text("defaultMessageRequestMode", None, "PULL"),
        ("PULL",),
        "groups pull until they are switched over one by one (mqadmin setConsumeMode); remove the line",
    ),
    RefusedKey(
        flag("rejectPullConsumerEnable", None, "false"),
        _OFF,
        "pulls are served beside pops; remove the line",
    ),
    RefusedKey(
        flag("disableConsumeIfConsumerReadSlowly", "false"),
        _OFF,
        "a slow group is not shut out here; remove the line",
    ),
    RefusedKey(
        flag("timerStopEnqueue", None, "false"),
        _OFF,
        "timed messages cannot be held back here; timerWheelEnable=false refuses them",
    ),
    RefusedKey(
        flag("timerStopDequeue", None, "false"),
        _OFF,
        "timed messages cannot be held back here; remove the line",
    ),
    RefusedKey(
        number("startAcceptSendRequestTimeStamp", "0"),
        ("0",),
        "sends are taken as soon as there is a leader; remove the line",
    ),
    RefusedKey(
        text("messageStorePlugIn", ""),
        ("",),
        "classes of Java cannot be loaded here; remove the line",
    ),
    RefusedKey(
        text("readOnlyCommitLogStorePaths", ""),
        ("",),
        "files of RocketMQ's commit log are not read; remove the line",
    ),
    RefusedKey(flag("fetchNamesrvAddrByAddressServer", "false"), _OFF, _NO_ADDRESS),
    RefusedKey(flag("fetchNameSrvAddrByDnsLookup", None, "false"), _OFF, _NO_ADDRESS),
)
