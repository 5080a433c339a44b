"""Settings for tools: what holds (26), and changes while the broker runs (25).

A change of what belongs to the group goes through the log, so it is carried out by the leader; a change of a node's
own settings by the node that is asked. What keeps the latter is behind an interface, since it waits for a disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from broker.properties import read_properties
from broker.server.changes import LiveSettings, problems, scope_of, unheeded
from broker.server.config import BrokerConfig
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.retention import FORCIBLY_PERCENTS, RetentionRules
from broker.settings.keys import Scope
from broker.store.control import PutSettings
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.times import time_text
from dledger import ConfigError, LogServer
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json

_log = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 * 1024
"""Far more than all keys that can change."""

CHANGES_MAX = 64


class KeepNodeSettings(Protocol):
    """Keeps changes of this node's own settings."""

    def values(self) -> Mapping[str, str]:
        """Return the changes that hold, by key."""
        ...

    def notes(self) -> Mapping[str, tuple[str, int]]:
        """Return who has changed a key, and when, in ms since 1970."""
        ...

    def keep(self, values: Mapping[str, str], by: str, done: Callable[[str | None], None]) -> None:
        """Make changes durable; call `done` with None, or with why they are not kept."""
        ...


class SettingsHandlers:
    """Answers 25 and 26."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        live: LiveSettings,
        node: KeepNodeSettings | None,
    ) -> None:
        """Set up the answers.

        Args:
            log: who leads.
            state: the fold, with the changes of the group.
            commits: changes are staged here.
            router: waits for their commit, and passes them on.
            live: what holds now.
            node: keeps changes of this node; None: they cannot be kept.
        """
        self._log = log
        self._state = state
        self._commits = commits
        self._router = router
        self._live = live
        self._node = node

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code = RequestCode
        return (
            Handler(code.UPDATE_BROKER_CONFIG, self.update, RequestKind.ADMIN, Where.ANY),
            Handler(code.GET_BROKER_CONFIG, self.show, RequestKind.READ, Where.HERE),
        )

    def update(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_BROKER_CONFIG: all changes of the body, or none and every reason."""
        try:
            changes = _read_changes(command.body)
            wrong = problems(changes, self._live.config.unchangeable)
            wrong = wrong or unheeded(changes, self._live.config)
        except ConfigError as error:
            changes, wrong = {}, [str(error)]
        scopes = {scope_of(key) for key in changes}
        if not wrong and len(scopes) > 1:
            own = sorted(key for key in changes if scope_of(key) is Scope.NODE)
            wrong = [
                f"{', '.join(own)} is this node's own, the rest is the group's: change them one after the other"
            ]
        if wrong:
            text = f"nothing was changed: {'; '.join(wrong)}"
            request.answer(ResponseCode.SYSTEM_ERROR, text[:4096])
        elif scopes == {Scope.GROUP}:
            self._change_group(request, changes)
        else:
            self._change_node(request, changes)

    def _change_group(self, request: PendingRequest, changes: Mapping[str, str]) -> None:
        if not self._log.is_serving:
            self._router.route(request)  # to the leader, or to wait for one
        elif self._commits.is_full:
            request.refuse_as_busy()
        else:
            command = PutSettings(dict(changes), request.origin.address[:256])
            place = self._commits.stage_control(command)
            self._router.when_committed(request, place, partial(self._changed, request))

    def _changed(self, request: PendingRequest, staged: StagedEntry, place: int) -> None:
        """Answer a change that is committed; the fold may have refused it.

        It holds on this node before the answer is given.
        """
        self._live.look()
        refusal = self._state.refusals.at(staged.physical_offset(place))
        if refusal is None:
            request.answer(ResponseCode.SUCCESS)
        else:
            text = f"nothing was changed: refused, {refusal.kind.name.lower()} {refusal.detail}"
            request.answer(ResponseCode.SYSTEM_ERROR, text[:1024])

    def _change_node(self, request: PendingRequest, changes: Mapping[str, str]) -> None:
        if self._node is None:
            text = "nothing was changed: this node keeps no settings of its own"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        by = request.origin.address
        self._node.keep(changes, by, partial(self._kept, request, changes, by))

    def _kept(
        self, request: PendingRequest, changes: Mapping[str, str], by: str, problem: str | None
    ) -> None:
        """Adopt and answer a change that is durable, or say why it is not."""
        if problem is not None:
            request.answer(ResponseCode.SYSTEM_ERROR, problem)
            return
        self._live.refresh()
        _log.warning("settings of this node were changed by %s: %s", by, dict(changes))
        request.answer(ResponseCode.SUCCESS)

    def show(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_BROKER_CONFIG with lines of a broker.conf; comments say who has changed what, and when."""
        version = self._state.settings.version
        ext = {
            "version": write_json(
                {"counter": version.counter, "timestamp": version.timestamp_ms}
            ).decode()
        }
        table = self._facts() | settings_table(self._live.config)
        lines = [f"{key}={value}" for key, value in table.items()]
        body = "\n".join((*self._notes(), *lines, ""))
        request.answer(ResponseCode.SUCCESS, ext=ext, body=body.encode())

    def _facts(self) -> dict[str, str]:
        """Return what tools read here that nobody can set: mqadmin's exportConfigs fails where one is missing."""
        is_leader = self._log.is_serving
        config = self._live.config
        return {
            "brokerId": "0" if is_leader else str(config.broker_id_as_follower),
            "brokerRole": "SYNC_MASTER" if is_leader else "SLAVE",
            "filterServerNums": "0",
        }

    def _notes(self) -> list[str]:
        notes = {key: (each.by, each.at_ms) for key, each in self._state.settings.items()}
        own = self._node.notes() if self._node is not None else {}
        lines = [
            f"# {key} was changed by {by} at {time_text(at_ms)}, {whose}"
            for table, whose in ((notes, "for the group"), (own, "on this node"))
            for key, (by, at_ms) in table.items()
        ]
        passed = self._live.passed_over.items()
        return lines + [f"# {key} is passed over by this node: {why}" for key, why in passed]


def settings_table(config: BrokerConfig) -> dict[str, str]:
    """Return what holds, under the keys of a broker.conf: what was read, and what the process has made of it."""
    made: dict[str, object] = {
        "brokerName": config.broker_name,
        "brokerClusterName": config.cluster,
        "brokerIP1": config.advertised_host,
        "listenPort": config.listen.port,
        "namesrvAddr": ";".join(map(str, config.namesrvs)),
        "enableDLegerCommitLog": "true",
        "dLegerGroup": config.group,
        "dLegerSelfId": config.node_id,
        "dLegerPeers": ";".join(map(str, config.peers)),
        "preferredLeaderId": ";".join(config.preferred_leaders),
        "storePathRootDir": config.store_path,
        "flushDiskType": "SYNC_FLUSH" if config.fsync else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": config.segment_size_bytes,
        "snapshotLogBytes": config.snapshot_log_bytes,
        "maxMessageSize": config.message_bytes_max,
        "autoCreateTopicEnable": str(config.auto_create_topics).lower(),
        "autoCreateSubscriptionGroup": str(config.auto_create_groups).lower(),
        "defaultTopicQueueNums": config.default_topic_queues,
        "timerWheelEnable": str(config.timers).lower(),
        "timerMaxDelaySec": config.timer_delay_max_ms // 1000,
        "recallMessageEnable": str(config.recall).lower(),
        "brokerPermission": config.permission,
        **_retention_settings(config.retention),
        "longPollingEnable": str(config.long_polling).lower(),
        "enablePropertyFilter": str(config.property_filters).lower(),
        "recognizeRepeatedSends": str(config.recognise_repeats).lower(),
        "tls.enable": str(config.tls.dials).lower(),
        "useTLS": str(config.tls.dials).lower(),
    }
    return {**config.texts, **{key: str(value) for key, value in made.items()}}


def _retention_settings(rules: RetentionRules) -> dict[str, str | int]:
    """Return what is deleted when, by the keys of a broker.conf."""
    seconds = rules.reserved_ms // 1000
    return {
        **(
            {"retentionSeconds": seconds}
            if rules.is_any_hour
            else {"fileReservedTime": seconds // 3600}
        ),
        "deleteWhen": ";".join(f"{hour:02}" for hour in sorted(rules.delete_hours)),
        "retentionBytes": rules.bytes_max,
        "diskMaxUsedSpaceRatio": rules.used_percent_max,
        "cleanFileForciblyEnable": str(rules.forcibly_percent > 0).lower(),
        "diskSpaceCleanForciblyRatio": rules.forcibly_percent or FORCIBLY_PERCENTS[1],
        "diskSpaceWarningLevelRatio": rules.warning_percent,
    }


def _read_changes(body: bytes) -> dict[str, str]:
    """Read the body of a change.

    Raises:
        ConfigError: it is no text of a broker.conf, empty or too long.
    """
    if len(body) > BODY_BYTES_MAX:
        raise ConfigError(f"the body has {len(body)} bytes, at most {BODY_BYTES_MAX} may be")
    try:
        changes = read_properties(body.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"the body is not text in UTF-8: byte {error.start}") from error
    if not 0 < len(changes) <= CHANGES_MAX:
        raise ConfigError(f"the body names {len(changes)} keys, 1 to {CHANGES_MAX} may be")
    return changes
