"""The services of one broker, built and joined: who gets which part of the others stands here, and nowhere else.

They decide and answer, without sockets, files and clocks of their own; what happens to them is the controller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from broker.access.digest import RulesDigests
from broker.server.changes import LiveSettings
from broker.server.config import BrokerConfig, follower_id
from broker.server.deliveries.delays import Delays
from broker.server.deliveries.timers import TimerDeliveries
from broker.server.deliveries.transaction_checks import TransactionChecks
from broker.server.environment import Environment
from broker.server.handlers.access_admin import AccessAdmin
from broker.server.handlers.admin import AdminHandlers
from broker.server.handlers.assignments import Assignments
from broker.server.handlers.cleaning import Cleaning
from broker.server.handlers.client_calls import ClientCalls
from broker.server.handlers.client_tools import ClientTools
from broker.server.handlers.committers import Committers
from broker.server.handlers.followers import Followers
from broker.server.handlers.group_rules import GroupRules
from broker.server.handlers.ha_info import HaInfo
from broker.server.handlers.link_server import LinkServer
from broker.server.handlers.locks import Locks
from broker.server.handlers.member_info import MemberInfo
from broker.server.handlers.members import Members
from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.offset_tools import OffsetTools
from broker.server.handlers.offsets import Offsets
from broker.server.handlers.pins import PinRequests
from broker.server.handlers.pop_acks import PopAcks
from broker.server.handlers.pop_reading import PopReading
from broker.server.handlers.pop_returns import PopReturns
from broker.server.handlers.pops import PopRequests
from broker.server.handlers.pull_advice import PullAdvice
from broker.server.handlers.pulls import Pulls
from broker.server.handlers.replies import Replies
from broker.server.handlers.requesters import Requesters
from broker.server.handlers.resets import ResetRequests
from broker.server.handlers.row_sends import RowSends
from broker.server.handlers.runtime_info import RequestTimes, RuntimeInfo
from broker.server.handlers.send_answers import SendAnswers
from broker.server.handlers.send_backs import SendBacks
from broker.server.handlers.sends import Sends
from broker.server.handlers.settings_admin import SettingsHandlers
from broker.server.handlers.table_changes import TableChanges
from broker.server.handlers.tool_reads import ToolReads
from broker.server.handlers.traffic_reads import TrafficReads
from broker.server.handlers.transaction_resumes import TransactionResumes
from broker.server.handlers.transactions import TransactionEnds
from broker.server.links.link import LeaderLink
from broker.server.live_rules import LiveRules, send_settings
from broker.server.requests.commits import ENTRY_BYTES_MAX, Commits
from broker.server.requests.dispatch import Dispatch
from broker.server.requests.linear import LinearReads
from broker.server.requests.origin import Outputs
from broker.server.requests.put_times import PutTimes
from broker.server.requests.read_points import ReadPoints
from broker.server.requests.router import Router
from broker.server.watches.digest_watch import DigestWatch
from broker.server.watches.retention_watch import RetentionWatch
from broker.server.watches.traffic_stats import TrafficStats
from broker.server.watches.trims import Trims
from broker.service.catalog import Catalog, group_for_use
from broker.service.clients import newest_subscription
from broker.service.pop import PopRules
from broker.service.pull import PullRules
from broker.service.repeats import Repeats
from broker.service.send import SendRules
from broker.service.send_back import SendBackRules
from broker.service.timers import RecallRules, TimerRules
from broker.service.transactions import EndRules
from broker.store.kept_log import KeptLog
from broker.store.record_reader import MessageGoneError, read_message
from broker.store.staging import Staging
from broker.store.state import BrokerState
from dledger import GroupSecret, LogServer
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.ids import OffsetIdMaker, UniqKeyMaker
from dledger_mq.message.names import HALF_TOPIC
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.replies import SendReplies


class Services:
    """All services of one broker.

    Attributes:
        commits, link, router, points, requesters, members, calls, replies, resets, offsets, ends, pulls, pops,
            pop_returns, delays, timers, checks, digests, retention, trims, member_info, runtime, stats, sends: the
            services whose events the controller passes on.
        repeats: the notes on answers to sends; None where repeats are not recognised.
        link_server: this node's end of the links of other nodes.
        dispatch: the table of all handlers.
        live: the settings as they hold now.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: LogServer,
        state: BrokerState,
        *,
        outputs: Outputs,
        environment: Environment,
    ) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._outputs = outputs
        self._environment = environment
        address = environment.service_address
        self._store_host = pack_host(address.host, address.port)
        self._catalog = Catalog(
            lambda name: state.topics.get(name), lambda name: state.groups.get(name)
        )
        self._answers = SendAnswers(
            SendReplies(config.region, trace_on=config.trace_on),
            OffsetIdMaker(self._store_host),
            config.broker_name,
        )
        self.commits = self._make_commits()
        self.link = self._make_link()
        linear = environment.make_linear(log, outputs, environment.nursery)
        self.router = self._make_router(linear)
        self.points = self._make_points(linear)
        self._followers = Followers(self._follower_id, environment.monotonic_ms)
        self.requesters = Requesters()
        self.members = self._make_members()
        self.calls = ClientCalls(self.link, self.members, self.requesters, environment.monotonic_ms)
        self._committers = self._make_committers()
        self.resets = self._make_resets()
        self.offsets = self._make_offsets()
        self.repeats = None
        if config.recognise_repeats:
            self.repeats = Repeats(state, self._load, self._log_ms)
        self._new_topics = NewTopics(environment.when_routed, self.router.age_ms)
        self.ends = self._make_ends()
        self.pulls = self._make_pulls()
        self.pulls.loads.answered = self.pulls.turns.answered = outputs.flush
        self.pulls.looks.answered = outputs.flush
        self.router.disk_waits.answered = outputs.flush
        self.delays = Delays(log, state, self.commits, self._log_ms)
        self.timers = self._make_timers()
        self.checks = self._make_checks()
        self.digests = DigestWatch(log, state, self.commits)
        self.member_info = self._make_member_info()
        self._put_times = PutTimes()
        self.runtime = self._make_runtime()
        self.stats = self._make_stats()
        self.sends = self._make_sends()
        self.replies = self._make_replies()
        self._send_backs = self._make_send_backs()
        self.pops, self.pop_returns = self._make_pops()
        self.pops.turns.answered = outputs.flush
        self.retention = self._make_retention()
        self.trims = Trims(log.reader, lambda: state.queues)
        self.dispatch = self._make_dispatch()
        self.dispatch.guard = environment.guard
        self.link_server = self._make_link_server()
        self.live = self._make_live()
        self._register()

    def _make_member_info(self) -> MemberInfo:
        return MemberInfo(
            self._config,
            self._log,
            monotonic_ms=self._environment.monotonic_ms,
            client_count=self._environment.client_count,
            stop_stage=self._environment.stop_stage,
            rules_digests=self._make_rules_digests(),
        )

    def _make_rules_digests(self) -> RulesDigests | None:
        guard, secret = self._environment.guard, GroupSecret.of(self._log.config.secret)
        if guard is None:
            return None
        return RulesDigests(lambda: guard.rules, lambda: () if secret is None else secret.accepted)

    def _make_live(self) -> LiveSettings:
        node = self._environment.node_settings
        node_values = dict if node is None else node.values
        return LiveSettings(self._config, lambda: self._state.settings, node_values, self._adopt)

    def _adopt(self, config: BrokerConfig) -> None:
        """Go by other settings from now on."""
        rules = LiveRules(
            self._send_rules,
            self._send_back_rules,
            self._pull_rules,
            self._pop_rules,
            self.pulls,
            self.pops,
            self._advice,
            self.members,
            self._end_rules,
            self.checks,
            self.retention,
            self._timer_rules,
        )
        rules.adopt(config)
        self._environment.settings_changed(config)

    def _make_runtime(self) -> RuntimeInfo:
        """Build the figures for tools; `pulls` and `member_info` have to exist by then."""
        return RuntimeInfo(
            self._config,
            self._log,
            self._state,
            member=self.member_info,
            room=self._environment.disk_room,
            wall_ms=self._environment.wall_ms,
            pulls=self.pulls.counts,
            clock_ahead_ms=self._environment.clock_ahead_ms,
            loss_notice=self._environment.loss_notice,
            held_up=lambda: self.retention.held_up,
            requests=RequestTimes(
                self._put_times,
                longest_ms=lambda codes: self.dispatch.longest_ms(codes),
                waiting_pulls=lambda: self.pulls.turns.waiting_count,
                head_begun_ms=lambda: self.commits.head_begun_ms,
            ),
        )

    def _make_stats(self) -> TrafficStats:
        counts = self.pulls.counts
        return TrafficStats(
            self._state,
            counts.by_reader,
            all_given=lambda: counts.messages,
            now_ms=self._environment.monotonic_ms,
        )

    def _make_commits(self) -> Commits:
        limits = self._config.limits
        return Commits(
            self._log,
            Staging(self._state, self._store_host),
            self._catalog,
            self._outputs,
            count_max=limits.staged_messages_max,
            bytes_max=limits.staged_bytes_max,
            entry_bytes_max=min(ENTRY_BYTES_MAX, self._log.config.raft.entry_body_bytes_max),
            now_ms=self._environment.wall_ms,
        )

    def _make_link(self) -> LeaderLink:
        config = self._config
        return LeaderLink(
            self._log,
            secret=GroupSecret.of(self._log.config.secret),
            asked_max=config.limits.forwards_max,
            asked_bytes_max=config.limits.staged_bytes_max,
            now_ms=self._environment.monotonic_ms,
            tls=self._environment.tls,
        )

    def _make_router(self, linear: LinearReads) -> Router:
        return Router(
            self._log,
            self.link,
            linear,
            self.commits,
            waiting_max=self._config.limits.requests_max,
            now_ms=self._environment.monotonic_ms,
            mistakes=self._environment.mistakes,
        )

    def _make_points(self, linear: LinearReads) -> ReadPoints:
        """Build the confirmations of reads; as many reads may wait as pulls may."""
        return ReadPoints(
            self._log,
            self.link,
            linear,
            waiting_max=self._config.limits.held_pulls_max,
            now_ms=self._environment.monotonic_ms,
        )

    def _make_members(self) -> Members:
        """Build the live clients, on a monotonic clock: a wall clock that is set would expire them all."""
        config = self._config
        return Members(
            self._log,
            self.commits,
            self._catalog,
            self.link,
            followers=self._followers,
            outputs=self._outputs,
            nursery=self._environment.nursery,
            beaten=self.requesters.beat,
            auto_create_groups=config.auto_create_groups,
            judge=lambda wanted: self._pull_rules.judge(wanted),
            tasks_max=config.limits.requests_max,
            now_ms=self._environment.monotonic_ms,
            mistakes=self._environment.mistakes,
        )

    def _make_resets(self) -> ResetRequests:
        return ResetRequests(
            self._log,
            self._state,
            self.commits,
            self.router,
            link=self.link,
            members=self.members,
            committers=self._committers,
            broker_name=self._config.broker_name,
        )

    def _make_offsets(self) -> Offsets:
        return Offsets(
            self._log,
            self._state,
            self.commits,
            self.router,
            committers=self._committers,
            resets=self.resets,
            now_ms=self._environment.monotonic_ms,
        )

    def _make_dispatch(self) -> Dispatch:
        """Build the table of handlers; `sends`, `pulls` and `calls` have to exist by then."""
        dispatch = Dispatch(self.router, self._environment.monotonic_ms)
        dispatch.lane, dispatch.pull_lane = self.sends.lane, self.pulls.lane
        dispatch.client_answers = self.calls.answered
        dispatch.seen = self.requesters.seen
        return dispatch

    def _make_committers(self) -> Committers:
        state = self._state
        return Committers(
            lambda: state.locks,
            self.members.members,
            member_at=self.members.exchange.union.at,
            resets=lambda: state.offsets.resets,
        )

    def _make_timers(self) -> TimerDeliveries:
        config = self._config
        return TimerDeliveries(
            self._log,
            self._state,
            self.commits,
            self.router,
            rules=RecallRules(
                config.recall, config.broker_name, lambda topic: topic in self._state.topics
            ),
            now_ms=self._log_ms,
        )

    def _follower_id(self, node_id: str) -> int | None:
        """Return the stable id of a member in routes; None: it is no member."""
        return follower_id(node_id) if self._log.roster.is_known(node_id) else None

    def _make_link_server(self) -> LinkServer:
        """Build the end of other nodes' links; `sends`, `members` and `points` have to exist by then."""
        config = self._config
        return LinkServer(
            group=config.group,
            is_member=self._log.roster.is_known,
            secret=GroupSecret.of(self._log.config.secret),
            nonce=self._environment.link_nonce,
            needs_secret=self._environment.guard is not None,
            frame_bytes_max=config.limits.frame_bytes_max,
            handle=self.dispatch.handle,
            delivered=self.sends.delivered,
            sync_clients=self.members.exchange.sync_from,
            read_point=self.points.answer_node,
            client_answered=self.calls.answered_by_node,
        )

    def _make_admin(self) -> AdminHandlers:
        """Build the answers for tools; `members` and `runtime` have to exist by then, since both are shown."""
        return AdminHandlers(
            self._log,
            self._state,
            self.router,
            members=self.members,
            broker_name=self._config.broker_name,
            runtime=self.runtime.table,
            consumed_per_second=self.stats.consumed_per_second,
            given=self._given_offsets,
            made=self._environment.made,
            looked=self.resets.looked,
        )

    def _given_offsets(self, group: str, topic: str) -> Mapping[QueueId, QueueOffset]:
        """Return how far the members of a group were given messages here; nothing when nobody is in it."""
        return self.pulls.places.of(group, topic) if self.members.members(group) else {}

    def _make_tools(
        self,
    ) -> tuple[
        AdminHandlers,
        TableChanges,
        OffsetTools,
        ResetRequests,
        ClientTools,
        ToolReads,
        TrafficReads,
    ]:
        """Build what tools ask for, as `_make_admin` does."""
        environment = self._environment
        return (
            self._make_admin(),
            TableChanges(
                self._state, self.commits, self.router, when_routed=environment.when_routed
            ),
            OffsetTools(self._state, self.commits, self.router, members=self.members),
            self.resets,
            ClientTools(
                self._log,
                self._state,
                self.router,
                members=self.members,
                calls=self.calls,
                broker_name=self._config.broker_name,
            ),
            ToolReads(
                self._log,
                self._state,
                self.router,
                members=self.members,
                broker_name=self._config.broker_name,
                service_address=str(environment.service_address),
                consumed_per_second=self.stats.consumed_per_second,
                given=self._given_offsets,
                wall_ms=environment.wall_ms,
                monotonic_ms=environment.monotonic_ms,
            ),
            TrafficReads(self._state, self.stats, cluster=self._config.cluster),
        )

    def _register(self) -> None:
        """Register the handlers of all services."""
        for service in (
            self.sends,
            self.replies,
            self._send_backs,
            self.pulls,
            self.pops,
            self._make_pop_acks(),
            self._make_assignments(),
            self.offsets,
            self.members,
            Locks(self.commits, self.router, self._state, self._committers),
            self.ends,
            self._make_resumes(),
            self.timers,
            *self._make_tools(),
            SettingsHandlers(
                self._log,
                self._state,
                self.commits,
                self.router,
                live=self.live,
                node=self._environment.node_settings,
            ),
            Cleaning(
                self.commits,
                self.router,
                self._catalog,
                lambda: self._state.queues,
                ask_retention=self.retention.ask,
            ),
            PinRequests(self.commits, self.router, self._state),
            GroupRules(self._state, self.commits, self.router),
            HaInfo(self._config, self._log),
            AccessAdmin(
                self._environment.access_rules,
                cluster=self._config.cluster,
                broker_name=self._config.broker_name,
                service_address=str(self._environment.service_address),
            ),
            self.link_server,
        ):
            self.dispatch.register(service.handlers())

    def _make_assignments(self) -> Assignments:
        return Assignments(
            self._state,
            self.commits,
            self.router,
            members=self.members.members,
            broker_name=self._config.broker_name,
            find_group=lambda name: group_for_use(
                self._catalog, name, auto_create=self.members.auto_create_groups
            ),
            find_route=self._environment.find_route,
        )

    def _make_pop_acks(self) -> PopAcks:
        return PopAcks(
            self._state,
            self.commits,
            self.router,
            self.pop_returns,
            broker_name=self._config.broker_name,
            freed=self.pops.freed,
        )

    def _make_pops(self) -> tuple[PopRequests, PopReturns]:
        """Build pops, which share limits with pulls, and what goes to retry topics, by the rules of send-backs."""
        config = self._config
        self._pop_rules = rules = PopRules(
            self._catalog,
            permission=config.permission,
            auto_create_groups=config.auto_create_groups,
            forbidden_bits=lambda group, topic: self._state.groups.forbidden_bits(group, topic),
            select=lambda wanted: self._pull_rules.select(wanted),
        )
        reading = PopReading(self._log, self._state, lambda: self._advice.limits, self._log_ms)
        returns = PopReturns(
            self._log,
            self._state,
            self.commits,
            rules=self._send_back_rules,
            reading=reading,
            has_members=lambda group: bool(self.members.members(group)),
            now_ms=self._environment.monotonic_ms,
        )
        pops = PopRequests(
            self._log,
            self._state,
            self.commits,
            self.router,
            rules=rules,
            reading=reading,
            returns=returns,
            counts=self.pulls.counts,
            held_max=config.limits.held_pulls_max,
            long_polling=config.long_polling,
            pick=self._environment.pick,
            now_ms=self._environment.monotonic_ms,
        )
        return pops, returns

    def _make_sends(self) -> Sends:
        """Build the way of sends; retries are recognised by `repeats`, the same one that half messages use."""
        config = self._config
        keys = UniqKeyMaker(self._store_host[:4], *self._environment.key_numbers)
        self._send_rules = rules = SendRules(
            self._catalog,
            send_settings(config),
            pick=self._environment.pick,
            new_key=lambda: keys.next_key(self._environment.wall_ms()),
            timers=self._timer_rules(config),
            has_live_lock=lambda group: self._state.locks.has_live_lock(group, self._log_ms()),
        )
        rows = RowSends(
            self.commits,
            self.router,
            lambda: self._state.sinks,
            self._answers.ids,
            new_topics=self._new_topics,
        )
        return Sends(
            self.commits,
            self.router,
            rules,
            self._answers,
            ends=self.ends,
            rows=rows,
            repeats=self.repeats,
            new_topics=self._new_topics,
            put_times=self._put_times,
        )

    def _make_replies(self) -> Replies:
        """Build the way of replies; `calls` and the rules of sends have to exist by then."""
        environment = self._environment
        return Replies(
            self.router,
            self.calls,
            self.requesters,
            nodes=self.members.exchange.links,
            replies=self._answers.replies,
            body_bytes_max=lambda: self._send_rules.settings.message_bytes_max,
            store_host=str(environment.service_address),
            wall_ms=environment.wall_ms,
            now_ms=environment.monotonic_ms,
        )

    def _make_send_backs(self) -> SendBacks:
        config = self._config
        self._send_back_rules = rules = SendBackRules(
            self._catalog,
            permission=config.permission,
            auto_create_groups=config.auto_create_groups,
            delay_level_max=len(config.delay_levels_ms),
            load=self._load,
            pick=self._environment.pick,
            may_consume=None if self._environment.guard is None else self._may_consume,
        )
        return SendBacks(self.commits, self.router, rules)

    def _may_consume(self, group: str, topic: str) -> bool:
        """Return whether a group has consumed a topic, or a member subscribes to it: both ask for rights to it."""
        if self._state.offsets.of(group, topic):
            return True
        members = self.members.members(group).values()
        return newest_subscription(members, topic) is not None

    def _make_ends(self) -> TransactionEnds:
        """Build the ends of transactions, on the wall clock: a message's age is counted from its born time."""
        config = self._config
        self._end_rules = rules = EndRules(
            lambda: self._state.transactions,
            timeout_ms=config.transaction_timeout_ms,
            delay_level_max=len(config.delay_levels_ms),
            timers=self._timer_rules(config),
            load=self._load,
        )
        return TransactionEnds(
            self._log,
            self.commits,
            self.router,
            lambda: self._state.transactions,
            rules=rules,
            answers=self._answers,
            repeats=self.repeats,
            new_topics=self._new_topics,
            open_max=config.limits.open_transactions_max,
            now_ms=self._environment.wall_ms,
        )

    def _make_resumes(self) -> TransactionResumes:
        return TransactionResumes(
            self.commits,
            self.router,
            lambda: self._state.transactions,
            self.ends,
            load=self._load,
            stored=lambda key: self._state.key_index.candidates(
                HALF_TOPIC, key, 0, self._state.last_store_ms
            ),
            now_ms=self._log_ms,
        )

    def _make_checks(self) -> TransactionChecks:
        """Build the checks; they need `ends`, so that no transaction is checked while its end is in flight."""
        config = self._config
        return TransactionChecks(
            self._log,
            self._state,
            self.commits,
            self.ends,
            catalog=self._catalog,
            ask=self.members.ask_producer,
            broker_name=config.broker_name,
            timeout_ms=config.transaction_timeout_ms,
            interval_ms=config.transaction_check_interval_ms,
            check_max=config.transaction_check_max,
            wall_ms=self._environment.wall_ms,
            monotonic_ms=self._environment.monotonic_ms,
        )

    def _make_retention(self) -> RetentionWatch:
        """Build the leader's retention; the room on this node's disk is reported to whoever leads."""
        environment = self._environment
        return RetentionWatch(
            self._log,
            self._state,
            self.commits,
            self._config.retention,
            own_percent=self._own_percent,
            follower_percents=self._followers.used_percents,
            refuse_sends=self._refuse_sends,
            hand_over=partial(environment.nursery.start_soon, self._log.hand_over),
            wall_ms=environment.wall_ms,
            local_hour=environment.local_hour,
        )

    def _own_percent(self) -> float | None:
        room = self._environment.disk_room()
        used_percent = None if room is None else room.used_percent
        self.members.exchange.disk_used_percent = used_percent
        return used_percent

    def _refuse_sends(self, reason: str) -> None:
        self.sends.refused_because = self._send_backs.refused_because = reason

    def _timer_rules(self, config: BrokerConfig) -> TimerRules | None:
        return TimerRules(config.timer_delay_max_ms, self._log_ms) if config.timers else None

    def _log_ms(self) -> int:
        """Return this node's time, but never one before the log's: due times are judged by it."""
        return max(self._environment.wall_ms(), self._state.last_store_ms)

    def _load(self, physical_offset: PhysicalOffset) -> StoredMessage | None:
        try:
            return read_message(KeptLog(self._log.reader, self._state.retention), physical_offset)
        except MessageGoneError:
            return None

    def _make_pulls(self) -> Pulls:
        """Build the pulls; the offset that a pull carries takes the same way as an offset commit."""
        config = self._config
        self._pull_rules = rules = PullRules(
            self._catalog,
            permission=config.permission,
            auto_create_groups=config.auto_create_groups,
            property_filters=config.property_filters,
            members=self.members.members,
            forbidden_bits=lambda group, topic: self._state.groups.forbidden_bits(group, topic),
        )
        self._advice = PullAdvice(
            self._log,
            self._followers,
            own_id=config.broker_id_as_follower,
            limits=config.reads,
            slave_reads=config.slave_reads,
            now_ms=self._environment.monotonic_ms,
        )
        pulls = Pulls(
            self._log,
            self._state,
            self.commits,
            rules,
            points=self.points,
            advice=self._advice,
            held_max=config.limits.held_pulls_max,
            long_polling=config.long_polling,
            now_ms=self._environment.monotonic_ms,
            commit_offset=self.offsets.pulled,
        )
        pulls.mistakes = self._environment.mistakes
        pulls.moved_to = self.resets.pulled
        return pulls
