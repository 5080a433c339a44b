"""The rules of the services that settings decide on, and how they follow a change of these.

It must not know where a change comes from (broker/server/changes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.server.config import BrokerConfig
from broker.server.deliveries.transaction_checks import TransactionChecks
from broker.server.handlers.members import Members
from broker.server.handlers.pops import PopRequests
from broker.server.handlers.pull_advice import PullAdvice
from broker.server.handlers.pulls import Pulls
from broker.server.watches.retention_watch import RetentionWatch
from broker.service.pop import PopRules
from broker.service.pull import PullRules
from broker.service.send import SendRules, SendSettings
from broker.service.send_back import SendBackRules
from broker.service.timers import TimerRules
from broker.service.transactions import EndRules


def send_settings(config: BrokerConfig) -> SendSettings:
    """Return the part of the settings that concerns sends."""
    return SendSettings(
        message_bytes_max=config.message_bytes_max,
        auto_create_topics=config.auto_create_topics,
        auto_create_groups=config.auto_create_groups,
        permission=config.permission,
        delay_level_max=len(config.delay_levels_ms),
        reject_transactions=config.reject_transactions,
        stamp=SendSettings.make_stamp(
            region=config.region, trace_on=config.trace_on, cluster=config.cluster
        ),
    )


@dataclass(frozen=True, slots=True)
class LiveRules:
    """The rules of one broker; `make_timers` builds those of due times anew."""

    sends: SendRules
    send_backs: SendBackRules
    pull_rules: PullRules
    pop_rules: PopRules
    pulls: Pulls
    pops: PopRequests
    advice: PullAdvice
    members: Members
    ends: EndRules
    checks: TransactionChecks
    retention: RetentionWatch
    make_timers: Callable[[BrokerConfig], TimerRules | None]

    def adopt(self, config: BrokerConfig) -> None:
        """Go by these settings from now on."""
        timers = self.make_timers(config)
        self.sends.settings, self.sends.timers = send_settings(config), timers
        self.ends.timeout_ms, self.ends.timers = config.transaction_timeout_ms, timers
        for rules in (self.send_backs, self.pull_rules, self.pop_rules):
            rules.permission = config.permission
            rules.auto_create_groups = config.auto_create_groups
        self.pull_rules.property_filters = config.property_filters
        self.members.auto_create_groups = config.auto_create_groups
        self.pulls.long_polling = self.pops.long_polling = config.long_polling
        self.advice.adopt(config.reads, slave_reads=config.slave_reads)
        self.checks.timeout_ms = config.transaction_timeout_ms
        self.checks.interval_ms = config.transaction_check_interval_ms
        self.checks.check_max = config.transaction_check_max
        self.retention.rules = config.retention
