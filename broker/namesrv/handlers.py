"""The answers of the name server: one method for each request code.

Most answers are made at once. A change of configuration values waits for its commit, and the first registration
over a connection until the broker was asked back, so these run as tasks of their own; answers may therefore leave in
another order than their requests came, as everywhere in the protocol. It must not know
sockets: an asker is a name, and an answer is returned.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass

import msgspec

from broker.namesrv.committed_places import CommittedPlaces
from broker.namesrv.disputes import Disputes
from broker.namesrv.errors import (
    KvLimitError,
    KvUnavailableError,
    NameTakenError,
    NotYetError,
    RefusedRegistrationError,
    StrangerError,
    UnsignedRegistrationError,
)
from broker.namesrv.kv import ORDER_TOPIC_NAMESPACE, KvStore
from broker.namesrv.registrants import Registrants
from broker.namesrv.routes import RouteTable
from broker.refused_codes import REFUSED_CODES
from dledger_mq.message.names import missing_because
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode, unsupported_remark
from dledger_mq.remoting.errors import FieldError, RemotingError
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.log_point import (
    COMMITTED_FIELD,
    FURTHEST_FIELD,
    LogPoint,
    read_log_point,
    write_log_point,
)
from dledger_mq.remoting.registrant import NONCE_FIELD, RIVAL_FIELD
from dledger_mq.remoting.registration import (
    BrokerIdentity,
    decode_data_version,
    decode_registration,
    identity_of,
)
from dledger_mq.remoting.route import (
    BrokerData,
    encode_cluster_info,
    encode_member_group,
    encode_route,
    encode_topic_list,
    wants_standard_json,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestSender:
    """The sender of a request.

    Attributes:
        connection: identity of the connection, for brokers that vanish with it.
        peer: `host:port`, for the log.
        is_closed: whether the connection has ended.
    """

    connection: Hashable
    peer: str
    is_closed: Callable[[], bool] = lambda: False


class RequestHandlers:
    """Answers requests from a route table and a KV store."""

    def __init__(
        self,
        routes: RouteTable,
        kv: KvStore,
        now_ms: Callable[[], int],
        registrants: Registrants,
        *,
        ring: Callable[[Hashable], None] = lambda _: None,
        settings: Mapping[str, str] | None = None,
        orders_messages: bool = False,
    ) -> None:
        """Set up the answers of one name server.

        Args:
            routes: changed by registrations.
            kv: changed by tools.
            now_ms: a clock that does not go back.
            registrants: what is known of who registers.
            ring: makes the broker of a connection register again, to learn something from the answer.
            settings: what GET_NAMESRV_CONFIG shows.
            orders_messages: add the ORDER_TOPIC_CONFIG value of a topic to its route
                (orderMessageEnable).
        """
        self._routes = routes
        self._kv = kv
        self._registrants = registrants
        self._ring = ring
        self._committed_places = CommittedPlaces()
        self._disputes = Disputes()
        self._now_ms = now_ms
        self._settings = dict(settings or {})
        self._orders_messages = orders_messages
        self._at_once: dict[int, Callable[[RemotingCommand, RequestSender], RemotingCommand]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_subscription_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_subscription_only_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
        }
        self._later: dict[int, Callable[[RemotingCommand], Awaitable[RemotingCommand]]] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
        }

    def is_slow(self, request: RemotingCommand, asker: RequestSender) -> bool:
        """Return True for a request that has to go to `answer_slow`."""
        if request.code != RequestCode.REGISTER_BROKER:
            return request.code in self._later
        try:
            identity = identity_of(request.ext)
        except FieldError:
            return False  # it is refused at once
        return not self._registrants.is_known(identity, asker.connection, request.ext)

    def answer(self, request: RemotingCommand, asker: RequestSender) -> RemotingCommand:
        """Answer any request that is not slow. What it raises is a fault of ours, never the sender's."""
        handler = self._at_once.get(request.code)
        if handler is None:
            return _refuse_unknown(request)
        try:
            return handler(request, asker)
        except RefusedRegistrationError as error:
            return _refusal(request, error)
        except RemotingError as error:
            return _failure(request, str(error))

    async def answer_slow(self, request: RemotingCommand, asker: RequestSender) -> RemotingCommand:
        """Answer a request that waits for a commit or a broker; raises as `answer` does."""
        try:
            if request.code == RequestCode.REGISTER_BROKER:
                return await self._register_later(request, asker)
            return await self._later[request.code](request)
        except RefusedRegistrationError as error:
            return _refusal(request, error)
        except (RemotingError, KvLimitError, KvUnavailableError) as error:
            return _failure(request, str(error))

    # Routes.

    def _route(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        """Answer with the route of a topic; keys of maps are quoted for the clients that ask for standard JSON."""
        topic = fields.text(request.ext, "topic")
        route = self._routes.route(topic)
        if route is None:
            # Without brokers nobody knows what is on and what is off.
            why = missing_because(topic) if self._routes.cluster_info().brokers else ""
            return make_response(
                request.opaque,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}. No broker that is registered here "
                f"has it.{why}".removesuffix("."),
            )
        if self._orders_messages:
            order = self._kv.get(ORDER_TOPIC_NAMESPACE, topic)
            route = msgspec.structs.replace(route, order_topic_conf=order)
        quote = wants_standard_json(request.version, request.ext)
        return _success(request, body=encode_route(route, quote_numbers=quote))

    def _cluster_info(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        return _success(request, body=encode_cluster_info(self._routes.cluster_info()))

    def _member_group(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        name = fields.text(request.ext, "brokerName")
        cluster = request.ext.get("clusterName", "")
        group = self._routes.member_group(name) or BrokerData({}, name, cluster)
        return _success(request, body=encode_member_group(group))

    def _all_topics(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        return _success(request, body=encode_topic_list(self._routes.topics()))

    def _topics_of_cluster(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        topics = self._routes.topics_of_cluster(fields.text(request.ext, "cluster"))
        return _success(request, body=encode_topic_list(topics))

    def _system_topics(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        topics, broker_addr = self._routes.system_topics()
        return _success(request, body=encode_topic_list(topics, broker_addr))

    def _unit_topics(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        topics = self._routes.unit_topics(is_unit=True, has_unit_subscription=False)
        return _success(request, body=encode_topic_list(topics))

    def _unit_subscription_topics(
        self, request: RemotingCommand, _: RequestSender
    ) -> RemotingCommand:
        topics = self._routes.unit_topics(is_unit=None, has_unit_subscription=True)
        return _success(request, body=encode_topic_list(topics))

    def _unit_subscription_only_topics(
        self, request: RemotingCommand, _: RequestSender
    ) -> RemotingCommand:
        topics = self._routes.unit_topics(is_unit=False, has_unit_subscription=True)
        return _success(request, body=encode_topic_list(topics))

    def _delete_topic(self, request: RemotingCommand, asker: RequestSender) -> RemotingCommand:
        """Forget a topic. Tools delete it at its brokers first; a group that still has it registers it again."""
        topic = fields.text(request.ext, "topic")
        names = self._routes.delete_topic(topic, fields.optional_text(request.ext, "clusterName"))
        _log.info("%s deleted the topic %.64r of %d brokers", asker.peer, topic, len(names))
        for name in names:
            for member in self._routes.members(name):
                self._ring(member.connection)
        return _success(request)

    def _wipe_write_perm(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        count = self._routes.wipe_write_perm(fields.text(request.ext, "brokerName"))
        return _success(request, ext={"wipeTopicCount": str(count)})

    def _add_write_perm(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        count = self._routes.add_write_perm(fields.text(request.ext, "brokerName"))
        return _success(request, ext={"addTopicCount": str(count)})

    # Brokers.

    async def _register_later(
        self, request: RemotingCommand, asker: RequestSender
    ) -> RemotingCommand:
        """Take in a registration whose sender has to be asked back, or compared with who has its name."""
        identity = identity_of(request.ext)
        name, connection = identity.broker_name, asker.connection
        host = asker.peer.rpartition(":")[0]
        try:
            self._registrants.check_signature(name, connection, request.ext, request.body)
            point = read_log_point(request.ext.get(COMMITTED_FIELD))
            await self._registrants.find_out(
                identity, connection, request.ext, point=point, host=host
            )
        except NameTakenError as error:
            self._note_rival(identity, asker, error)
            raise
        except StrangerError:
            self._routes.unregister(identity, connection)
            raise
        finally:
            if asker.is_closed():  # what was found out must not outlive it
                self._registrants.closed(connection)
        if asker.is_closed():
            raise NotYetError(
                f"the connection over which {identity.broker_addr} registered ended; nothing has changed"
            )
        if not self._routes.members(name):
            self._disputes.settle(name)
        standing = self._registrants.standing(identity, connection, request.ext)
        try:
            answer = self._register(request, asker)
        except RefusedRegistrationError as error:
            if standing.is_vouched and await self._dismiss_strangers(name):
                self._ring(connection)  # its standing may have changed meanwhile
                raise NotYetError(
                    f"a stranger had the place of {identity.broker_addr}, and has left; try again"
                ) from error
            raise
        if standing.is_vouched:
            await self._dismiss_strangers(name)
        return answer

    async def _dismiss_strangers(self, name: str) -> bool:
        """Take those out of a name that its members do not know; return True if there was one.

        It was let in while they could not say who it is. Should they be mistaken, it registers again.
        """
        is_any = False
        judgement = await self._registrants.judge_doubtful(name)
        for member in judgement.members:
            self._routes.confirm(member.identity.broker_addr, member.connection)
            if member.leads:
                self._ring(member.connection)  # now its topics are believed
        for stranger in judgement.strangers:
            if self._routes.unregister(stranger.identity, stranger.connection):
                is_any = True
                addr = stranger.identity.broker_addr
                _log.warning(
                    "broker %s at %s left: the name's members know no such member", name, addr
                )
                self._ring(stranger.connection)
        if is_any:
            for connection in self._routes.unlisted(name):
                self._ring(connection)  # a stranger had its line
        return is_any

    def _note_rival(
        self, identity: BrokerIdentity, asker: RequestSender, error: NameTakenError
    ) -> None:
        """Log that two groups have one name, and make both learn of it."""
        name, rival = identity.broker_name, identity.broker_addr
        noted = self._disputes.note(name, rival=rival, now_ms=self._now_ms())
        if noted.is_new:
            _log.error(
                "two groups of the name %s: %s is refused, since %s is of the group that has it; correct the "
                "settings of one of them",
                name,
                rival,
                error.holder_addr,
            )
        if noted.rings:
            for member in self._routes.members(name):
                self._ring(member.connection)
        self._routes.unregister(identity, asker.connection)

    def _register(self, request: RemotingCommand, asker: RequestSender) -> RemotingCommand:
        """Take in a registration of which everything is known that can be."""
        identity = identity_of(request.ext)
        name, connection = identity.broker_name, asker.connection
        self._registrants.check_signature(name, connection, request.ext, request.body)
        registration = decode_registration(request.body, ext=request.ext, version=request.version)
        standing = self._registrants.standing(identity, connection, request.ext)
        is_proven = standing.is_proven
        point = read_log_point(request.ext.get(COMMITTED_FIELD)) if standing.is_placed else None
        is_new = self._routes.known_version(identity.broker_addr) is None
        reply = self._routes.register(
            identity,
            registration,
            now_ms=self._now_ms(),
            connection=connection,
            is_proven=is_proven,
            point=point,
            is_doubtful=is_proven and not standing.is_vouched,
        )
        for other in reply.displaced:
            _log.warning(
                "broker %s at %s is foreign and left: the name's group is there",
                other.broker_name,
                other.broker_addr,
            )
        if is_new:
            _log.info(
                "%s broker %s id %d registered with %s, term %s",
                "proven" if is_proven else "foreign",
                name,
                identity.broker_id,
                identity.broker_addr,
                identity.term,
            )
        order = dict(self._kv.namespace(ORDER_TOPIC_NAMESPACE) or {})
        rival = self._disputes.rival_of(name, self._now_ms()) if is_proven else ""
        believed = point if standing.is_vouched else None
        return _success(
            request,
            ext=_known(
                {
                    "masterAddr": reply.leader_addr,
                    "haServerAddr": reply.ha_server_addr,
                    FURTHEST_FIELD: self._furthest_before(identity, believed),
                    RIVAL_FIELD: rival,
                }
            ),
            body=write_json({"table": order}),
        )

    def _furthest_before(self, identity: BrokerIdentity, point: LogPoint | None) -> str:
        """Return the furthest place of the group's log that is remembered; empty for brokers that name none."""
        if point is None:
            return ""
        members = self._routes.members(identity.broker_name)
        line = self._committed_places.line(
            identity.cluster_name,
            identity.broker_name,
            {member.broker_addr for member in members},
        )
        if line.points and point.restoration not in line.points:
            _log.info(
                "group %s was restored from backups as %r: its log is at index %d",
                identity.broker_name,
                point.restoration,
                point.index,
            )
        return write_log_point(line.take(point))

    def _unregister(self, request: RemotingCommand, asker: RequestSender) -> RemotingCommand:
        identity = identity_of(request.ext)
        if self._routes.unregister(identity, asker.connection):
            _log.info("broker %s unregistered %s", identity.broker_name, identity.broker_addr)
        else:
            _log.info(
                "%s asked to unregister %s, which is not registered over its connection: nothing changed",
                asker.peer,
                identity.broker_addr,
            )
        return _success(request)

    def _query_data_version(
        self, request: RemotingCommand, asker: RequestSender
    ) -> RemotingCommand:
        """Answer whether a broker's topics differ from the registered ones; the same version counts as a heartbeat."""
        identity = identity_of(request.ext)
        offered = decode_data_version(request.body)
        known = self._routes.known_version(identity.broker_addr)
        if known == offered:
            self._routes.note_alive(identity.broker_addr, asker.connection, self._now_ms())
        return _success(
            request,
            ext={"changed": "false" if known == offered else "true"},
            body=b"" if known is None else msgspec.json.encode(known),
        )

    def _broker_heartbeat(self, request: RemotingCommand, asker: RequestSender) -> RemotingCommand:
        broker_addr = fields.text(request.ext, "brokerAddr")
        self._routes.note_alive(broker_addr, asker.connection, self._now_ms())
        return _success(request)

    # Configuration values.

    async def _put_kv(self, request: RemotingCommand) -> RemotingCommand:
        await self._kv.put(
            *(fields.text(request.ext, name) for name in ("namespace", "key", "value"))
        )
        return _success(request)

    async def _delete_kv(self, request: RemotingCommand) -> RemotingCommand:
        await self._kv.delete(*(fields.text(request.ext, name) for name in ("namespace", "key")))
        return _success(request)

    def _get_kv(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        namespace, key = (fields.text(request.ext, name) for name in ("namespace", "key"))
        value = self._kv.get(namespace, key)
        if value is None:
            return make_response(
                request.opaque,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {namespace} Key: {key}",
            )
        return _success(request, ext={"value": value})

    def _kv_list(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        namespace = fields.text(request.ext, "namespace")
        table = self._kv.namespace(namespace)
        if table is None:
            return make_response(
                request.opaque,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {namespace}",
            )
        return _success(request, body=write_json({"table": dict(table)}))

    # Own settings.

    def _get_config(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        text = "".join(f"{key}={value}\n" for key, value in self._settings.items())
        return _success(request, body=text.encode())

    def _update_config(self, request: RemotingCommand, _: RequestSender) -> RemotingCommand:
        return make_response(
            request.opaque,
            ResponseCode.NO_PERMISSION,
            "the settings of a running name server cannot be changed, nothing was; start it again with others",
        )


def _known(ext: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that have a value: a broker takes an absent one for unknown."""
    return {name: value for name, value in ext.items() if value}


def _success(
    request: RemotingCommand, *, ext: Mapping[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    return make_response(request.opaque, ResponseCode.SUCCESS, ext=ext, body=body)


def _failure(request: RemotingCommand, text: str) -> RemotingCommand:
    return make_response(request.opaque, ResponseCode.SYSTEM_ERROR, text)


def _refusal(request: RemotingCommand, error: RefusedRegistrationError) -> RemotingCommand:
    """Answer a registration that was not taken, with what its sender needs for a better one."""
    code, ext = ResponseCode.SYSTEM_ERROR, {}
    if isinstance(error, NotYetError):
        code = ResponseCode.SYSTEM_BUSY
    elif isinstance(error, UnsignedRegistrationError):
        code, ext = ResponseCode.NO_PERMISSION, {NONCE_FIELD: error.nonce}
    elif isinstance(error, NameTakenError):
        code, ext = ResponseCode.NO_PERMISSION, {RIVAL_FIELD: error.holder_addr}
    return make_response(request.opaque, code, str(error), ext=ext)


def _refuse_unknown(request: RemotingCommand) -> RemotingCommand:
    """Answer a request of a code that nothing here takes: why, if that is known."""
    why = REFUSED_CODES.get(request.code)
    if why is None:
        code, remark = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, unsupported_remark(request.code)
    else:
        code, remark = ResponseCode.SYSTEM_ERROR, why
    return make_response(request.opaque, code, remark)
