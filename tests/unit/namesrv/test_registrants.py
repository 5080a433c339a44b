"""Who registers: asked back once, signed where there is a secret, and compared with who has the name."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from broker.namesrv.check_turns import VAIN_CHECKS_MAX
from broker.namesrv.disputes import DISPUTE_MS, RING_MS, Disputes
from broker.namesrv.errors import (
    NameTakenError,
    NotYetError,
    RefusedRegistrationError,
    UnsignedRegistrationError,
)
from broker.namesrv.handlers import RequestHandlers, RequestSender
from broker.namesrv.kv import LocalKv
from broker.namesrv.registrants import Answer, Registrants
from broker.namesrv.routes import RouteTable
from broker.namesrv.signing_secrets import SigningSecrets
from dledger import Index
from dledger_mq.net.address import Address
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.log_point import (
    COMMITTED_FIELD,
    FURTHEST_FIELD,
    LogPoint,
    write_log_point,
)
from dledger_mq.remoting.registrant import (
    PROOF_FIELD,
    RIVAL_FIELD,
    TOKEN_FIELD,
    is_token,
    registration_proof,
)
from dledger_mq.remoting.registration import (
    BrokerIdentity,
    Registration,
    encode_registration,
    identity_ext,
)
from dledger_mq.remoting.topic_config import WireDataVersion, WireTopicConfig

A, B, C, D = (f"10.0.0.{number}:10911" for number in (1, 2, 3, 4))
NAME = "broker-a"
HOST = "10.9.9.9"


@dataclass
class NameServerBench:
    """A name server's knowledge, and brokers that answer it.

    Attributes:
        logs: by address, the chain CRC at each index; who is not in it does not answer.
        asked: who was asked what, in order.
        members: by address, whether its group knows of a member there; who is not in it knows of no leader.
        rung: the connections whose brokers were made to register again.
        asked_about: who members were asked about, in order.
    """

    secrets: dict[str, str] = field(default_factory=dict)
    logs: dict[str, dict[int, int]] = field(default_factory=dict)
    asked: list[tuple[str, bool, int | None]] = field(default_factory=list)
    members: dict[str, dict[str, bool]] = field(default_factory=dict)
    rung: list[object] = field(default_factory=list)
    asked_about: list[str] = field(default_factory=list)
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.routes = RouteTable()
        self.registrants = Registrants(
            self.routes,
            self.ask,
            secrets=SigningSecrets({name: (each,) for name, each in self.secrets.items()}).accepted,
            draw_nonce=lambda: "nonce",
            now_ms=lambda: self.now_ms,
        )
        self.handlers = RequestHandlers(
            self.routes, LocalKv(None), lambda: self.now_ms, self.registrants, ring=self.rung.append
        )

    async def ask(
        self,
        address: Address,
        *,
        token: str | None = None,
        index: Index | None = None,
        member: str | None = None,
    ) -> Answer | None:
        addr = str(address)
        if member is not None:
            self.asked_about.append(member)
        await trio.lowlevel.checkpoint()
        await self.may_answer.wait()
        if member is None:
            self.asked.append((addr, token is not None, index))
        log = self.logs.get(addr)
        if log is None:
            return None
        is_own = token is None or token == token_of(addr)
        is_member = self.members.get(addr, {}).get(member or "")
        return Answer(is_own, None if index is None else log.get(index), is_member)

    async def request(
        self,
        addr: str,
        broker_id: int = 1,
        *,
        point: LogPoint | None,
        term: int = 3,
        name: str = NAME,
        host: str = HOST,
        connection: str = "",
        body: bytes = b"{}",
    ) -> RemotingCommand:
        """Register over the socket's side of the name server, on a connection that is named after the address."""
        identity = BrokerIdentity("main", name, addr, broker_id, term=term)
        ext = {**identity_ext(identity), TOKEN_FIELD: token_of(addr)}
        if point is not None:
            ext[COMMITTED_FIELD] = write_log_point(point)
        request = RemotingCommand(code=RequestCode.REGISTER_BROKER, opaque=1, ext=ext, body=body)
        asker = RequestSender(connection or addr, f"{host}:40000")
        while True:
            if self.handlers.is_slow(request, asker):
                answer = await self.handlers.answer_slow(request, asker)
            else:
                answer = self.handlers.answer(request, asker)
            if addr not in self.rung:
                return answer
            self.rung.remove(addr)

    def shown(self) -> dict[int, str]:
        """The addresses by id that clients are given."""
        group = self.routes.member_group(NAME)
        return {} if group is None else dict(group.broker_addrs)

    async def register(
        self,
        addr: str,
        broker_id: int = 1,
        *,
        index: int | None = None,
        restoration: str = "",
        name: str = NAME,
        token: str | None = None,
        connection: str = "",
    ) -> tuple[bool, bool]:
        """Register as a broker of ours that knows its log to be committed up to `index`."""
        identity = BrokerIdentity("main", name, addr, broker_id, term=3)
        point = None if index is None else LogPoint(index, 3, self.logs[addr][index], restoration)
        ext = {**identity_ext(identity), TOKEN_FIELD: token_of(addr) if token is None else token}
        line = connection or addr
        if not self.registrants.is_known(identity, line, ext):
            await self.registrants.find_out(identity, line, ext, point=point, host=HOST)
        is_proven, is_placed, _ = self.registrants.standing(identity, line, ext)
        self.routes.register(
            identity,
            Registration(WireDataVersion(), {}),
            now_ms=self.now_ms,
            connection=line,
            is_proven=is_proven,
            point=point if is_placed else None,
        )
        return is_proven, is_placed


def at(index: int, *, founded: int = 7) -> LogPoint:
    """A place in a log."""
    return LogPoint(index, 3, founded * 1000 + index)


def token_of(addr: str) -> str:
    return addr.encode().hex().ljust(32, "0")[:32]


def log(index: int, *, founded: int = 7) -> dict[int, int]:
    """The chain CRCs of a log: all differ when it began differently."""
    return {at: founded * 1000 + at for at in range(1, index + 1)}


async def test_a_broker_is_asked_once_for_each_connection() -> None:
    world = NameServerBench(logs={A: log(9)})
    assert await world.register(A, 0, index=5) == (True, True)
    assert await world.register(A, 1, index=6) == (True, True)
    assert world.asked == [(A, True, None)]
    assert await world.register(A, 0, index=9, connection="next") == (True, True)
    world.registrants.closed(A)
    await world.register(A, 0, index=9)
    assert world.asked == [(A, True, None)] * 3


async def test_a_registration_that_nobody_made_is_refused() -> None:
    world = NameServerBench(logs={A: log(9)})
    identity = BrokerIdentity("main", NAME, A, 0, term=2**63 - 1)
    for addr, token in ((A, "0" * 32), (B, token_of(B)), ("localhost:1", token_of(B))):
        claim = BrokerIdentity("main", NAME, addr, 0, term=identity.term)
        ext = {**identity_ext(claim), TOKEN_FIELD: token}
        with pytest.raises(RefusedRegistrationError):
            await world.registrants.find_out(claim, "stranger", ext, point=None, host=HOST)
        assert world.registrants.standing(claim, "stranger", ext) == (False, False, False)
    assert [addr for addr, *_ in world.asked] == [A, B], "names are not looked up"


def test_only_what_our_brokers_draw_is_passed_on() -> None:
    assert is_token("0123456789abcdef" * 2)
    for text in (None, "", "0" * 31, "0" * 33, "0" * 31 + "\n", "G" * 32, "é" * 32):
        assert not is_token(text)


@pytest.mark.parametrize("newcomer_index", [3, 5, 9])
async def test_two_groups_are_told_apart_by_their_logs(newcomer_index: int) -> None:
    world = NameServerBench(logs={A: log(9), B: log(9), C: log(9, founded=8)})
    world.members = {A: {B: True}}
    await world.register(A, 0, index=5)
    assert await world.register(B, index=newcomer_index) == (True, True)
    with pytest.raises(NameTakenError, match=f"with a broker at {A if newcomer_index < 9 else B}"):
        await world.register(C, 0, index=newcomer_index)
    assert {member.broker_addr for member in world.routes.members(NAME)} == {A, B}


async def test_stores_from_before_a_restoring_are_another_group() -> None:
    world = NameServerBench(logs={A: log(9), B: log(9)})
    await world.register(A, 0, index=5)
    with pytest.raises(NameTakenError):
        await world.register(B, 0, index=5, restoration="evening")


async def test_who_cannot_be_compared_yet_tries_again() -> None:
    world = NameServerBench(logs={A: log(9), B: log(9), C: log(9)})
    assert await world.register(B) == (True, False), "nobody has the name"
    await world.register(A, 0, index=5)
    with pytest.raises(NotYetError, match="no committed entry yet"):
        await world.register(C)
    world.logs[B] = {7: 7007}
    with pytest.raises(NotYetError, match="keeps no checksum for entry 5"):
        await world.register(B, 0, index=7)
    world.logs[B] = log(9)
    assert await world.register(B, 0, index=7) == (True, True)


async def test_a_member_that_stands_still_keeps_no_leader_out() -> None:
    world = NameServerBench(logs={A: log(9), B: log(9)})
    await world.register(A, 0, index=8)
    del world.logs[A]
    with pytest.raises(NotYetError):
        await world.register(B, 1, index=7)
    assert await world.register(B, 0, index=7) == (True, False)
    world.logs[A] = log(9, founded=8)
    with pytest.raises(NameTakenError):
        await world.register(B, 0, index=7)


@pytest.mark.parametrize("index", [3, 5, 9])
async def test_who_copies_a_log_is_no_member(index: int) -> None:
    """Without a secret anybody can read what a log is known by, and run a server that tells it."""
    world = NameServerBench(logs={A: log(9), B: log(9), C: log(9)})
    await world.register(A, 0, index=5)
    world.members = {A: {B: True, C: False}}
    for broker_id in (0, 1):
        with pytest.raises(NotYetError, match=f"know of none that serves clients at {C}"):
            await world.register(C, broker_id, index=index)
    assert await world.register(B, 1, index=4) == (True, True)
    world.members |= {B: {C: True}}
    assert await world.register(C, 0, index=index) == (True, True), "one knows it"


HUGE = 2**63 - 1


async def without_a_leader() -> NameServerBench:
    """A and B of a group whose members know of no leader, and C, a stranger's server, which copied their log."""
    world = NameServerBench(logs={A: log(9), B: log(9), C: {**log(9), 2**62: 1}})
    for addr, broker_id in ((A, 1), (B, 2)):
        assert (await world.request(addr, broker_id, point=at(5))).code == 0
    answer = await world.request(C, 0, point=LogPoint(2**62, 3, 1), term=HUGE)
    assert answer.code == 0, "its members cannot say who it is"
    assert world.shown() == {0: C, 1: A, 2: B}
    return world


def with_a_leader(world: NameServerBench) -> None:
    world.members = {A: {A: True, B: True, C: False}}


async def test_a_stranger_from_between_two_leaders_goes_when_one_registers() -> None:
    world = await without_a_leader()
    with_a_leader(world)
    assert (await world.request(A, 0, point=at(6), term=4)).code == 0
    assert world.shown() == {0: A, 2: B}
    assert world.rung == [C], "if that was a mistake, it comes back"
    refused = await world.request(C, 0, point=at(5), term=HUGE)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert world.shown() == {0: A, 2: B}


@pytest.mark.parametrize("broker_id", [0, 7])
async def test_who_nobody_vouched_for_is_asked_about_again_before_it_changes_anything(
    broker_id: int,
) -> None:
    """Whoever got in as a follower does not become the leader by that."""
    world = NameServerBench(logs={A: log(9), B: log(9), C: log(9)})
    await world.request(A, 1, point=at(5))
    assert (await world.request(C, 7, point=at(5), term=HUGE)).code == 0
    with_a_leader(world)
    assert (await world.request(C, broker_id, point=at(5), term=HUGE)).code != 0
    assert world.shown() == {1: A}


async def test_a_follower_that_registers_has_a_stranger_leave() -> None:
    world = NameServerBench(logs={A: log(9), B: log(9), C: log(9)})
    await world.request(A, 1, point=at(5))
    await world.request(C, 7, point=at(5), term=HUGE)
    assert (await world.request(A, 1, point=at(5))).code == 0
    assert world.shown() == {1: A, 7: C}, "A cannot say who C is"
    with_a_leader(world)
    assert (await world.request(A, 1, point=at(5))).code == 0
    assert world.shown() == {1: A}


async def test_members_are_not_compared_with_who_nobody_vouched_for() -> None:
    """A stranger may name a place that is further than all, and say of each log that it is another one."""
    world = await without_a_leader()
    world.logs[C] = log(9, founded=8)
    world.registrants.closed(B)
    world.routes.connection_closed(B)
    answer = await world.request(B, 2, point=at(6))
    assert (answer.code, RIVAL_FIELD in answer.ext) == (0, False)


async def test_who_nobody_vouched_for_vouches_for_nobody_and_plants_no_place() -> None:
    world = await without_a_leader()
    world.members = {C: {B: False, D: True}, A: {D: False}}
    world.logs[D] = log(9)
    assert (await world.request(D, 3, point=at(5))).code == ResponseCode.SYSTEM_BUSY
    answer = await world.request(A, 1, point=at(5))
    assert (answer.code, FURTHEST_FIELD in answer.ext) == (0, False)
    assert set(world.shown().values()) == {A, B, C}, "C does not send B away"


async def test_members_that_came_between_two_leaders_stay() -> None:
    world = NameServerBench(logs={A: log(9), B: log(9), C: log(9)})
    for addr, broker_id in ((A, 1), (B, 2), (C, 3)):
        await world.request(addr, broker_id, point=at(5))
    knows = {A: True, B: True, C: True}
    world.members = {A: knows, B: knows, C: knows}
    assert (await world.request(B, 0, point=at(6), term=4)).code == 0
    assert world.shown() == {0: B, 1: A, 3: C}
    world.members = {A: {B: False, C: False}}
    for addr, broker_id in ((A, 1), (B, 0), (C, 3)):
        assert (await world.request(addr, broker_id, point=at(6), term=4)).code == 0
    assert world.shown() == {0: B, 1: A, 3: C}, "they were vouched for, and are asked about no more"


async def test_when_the_first_one_has_left_the_next_one_vouches() -> None:
    world = await without_a_leader()
    world.registrants.closed(A)
    world.routes.connection_closed(A)
    world.logs[C] = log(9, founded=8)
    world.members = {addr: {A: True, B: True, C: False} for addr in (A, B)}
    assert (await world.request(A, 0, point=at(6), term=4)).code == 0
    assert world.shown() == {0: A, 2: B}


async def test_how_often_members_are_asked_about_many_strangers_is_bounded() -> None:
    """While nobody leads they cannot say who is none; and each of their registrations asked about all."""
    world = NameServerBench(logs={A: log(9), B: log(9)})
    await world.request(A, 1, point=at(5))
    strangers = [f"10.6.6.6:{port}" for port in range(1, 61)]
    for number, addr in enumerate(strangers):
        world.logs[addr] = log(9)
        world.now_ms = 1000 * number
        assert (await world.request(addr, 3 + number, point=at(5), host="10.6.6.6")).code == 0
    await world.request(B, 2, point=at(5))
    world.asked_about.clear()
    for _ in range(10):
        assert (await world.request(A, 1, point=at(5))).code == 0
    asked = [addr for addr in world.asked_about if addr != B]
    assert len(asked) == VAIN_CHECKS_MAX

    world.asked_about.clear()
    with_a_leader(world)
    world.members[A] |= dict.fromkeys(strangers, False)
    assert (await world.request(A, 0, point=at(6), term=4)).code == 0
    assert world.asked_about == [B], "a member of another host is confirmed at once"
    world.now_ms += 1000
    assert (await world.request(A, 0, point=at(6), term=4)).code == 0
    assert world.shown() == {0: A, 2: B}, "each no makes place for the next question"


async def test_the_one_in_the_leaders_place_is_asked_about_whatever_others_of_its_host_did() -> (
    None
):
    world = NameServerBench(logs={A: log(9)})
    await world.request(A, 1, point=at(5))
    for number in range(40):
        addr = f"10.6.6.6:{number + 1}"
        world.logs[addr] = log(9)
        world.now_ms = 1000 * number
        answer = await world.request(addr, 0, point=at(5), term=HUGE, host="10.6.6.6")
        assert answer.code == 0
    for _ in range(3):
        await world.request(A, 1, point=at(5))
    world.members = {A: {A: True} | {addr: False for addr in world.logs if addr != A}}
    assert (await world.request(A, 0, point=at(6), term=4)).code == 0
    assert world.shown()[0] == A


async def test_a_question_that_nobody_answers_holds_up_one_registration() -> None:
    """Each that waits has one of the places that a name server has for all."""
    world = NameServerBench(logs={C: log(9), D: log(9)})
    await world.request(C, 1, point=at(5))
    await world.request(D, 0, point=at(5))
    world.may_answer = trio.Event()
    codes: list[int] = []

    async def register() -> None:
        codes.append((await world.request(C, 1, point=at(5))).code)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(register)
        await trio.testing.wait_all_tasks_blocked()
        assert codes == [0] * 49
        world.may_answer.set()
    assert codes == [0] * 50
    assert world.registrants._judging == {}


async def test_what_a_connection_is_vouched_for_is_one_broker() -> None:
    """A stranger that registers another name of its own is the first one there, and no member here by that."""
    world = NameServerBench(logs={A: log(9), C: log(9), D: log(9)})
    await world.request(A, 1, point=at(5))
    assert (await world.request(C, 0, point=at(5), term=HUGE)).code == 0
    assert (await world.request(D, 0, point=at(5), name="its own", connection=C)).code == 0
    with_a_leader(world)
    assert (await world.request(A, 1, point=at(5))).code == 0
    assert set(world.shown().values()) == {A}


def topics(version: int, **perms: int) -> bytes:
    """The body of a registration."""
    return encode_registration(
        WireDataVersion(counter=version),
        [WireTopicConfig(topic_name=name, perm=perm) for name, perm in perms.items()],
    )


async def test_topics_of_a_stranger_go_with_it() -> None:
    """A stranger may name the members' topics, under the version that they have, with no permission at all."""
    world = NameServerBench(logs={A: log(9), C: log(9)})
    ours = topics(7, orders=6, bills=6)
    await world.request(A, 0, point=at(5), body=ours)
    await world.request(A, 1, point=at(5), body=ours)
    for version in (8, 7):
        body = topics(version, orders=0, bills=0, made_up=6, later=0)
        assert (await world.request(C, 0, point=at(5), term=HUGE, body=body)).code == 0
    with_a_leader(world)
    ours = topics(7, orders=6, bills=6, later=6)
    assert (await world.request(A, 0, point=at(6), term=4, body=ours)).code == 0
    assert sorted(world.routes.topics()) == ["bills", "later", "orders"]
    for name in world.routes.topics():
        route = world.routes.route(name)
        assert route is not None
        assert [queue.perm for queue in route.queues] == [6], name


async def test_topics_of_a_leader_that_is_confirmed_are_taken_then() -> None:
    world = NameServerBench(logs={A: log(9), B: log(9)})
    await world.request(A, 0, point=at(5), body=topics(7, orders=6, bills=6))
    await world.request(A, 1, point=at(5), body=topics(7, orders=6, bills=6))
    await world.request(B, 0, point=at(6), term=4, body=topics(8, orders=4, new=6))
    assert sorted(world.routes.topics()) == ["bills", "new", "orders"], (
        "who leads first need not be known"
    )
    with_a_leader(world)
    await world.request(A, 1, point=at(6))
    assert world.rung == [B]
    world.rung.clear()
    await world.request(B, 0, point=at(6), term=4, body=topics(8, orders=4, new=6))
    world.registrants.closed(B)
    world.routes.connection_closed(B)
    assert sorted(world.routes.topics()) == ["bills", "new", "orders"]
    route = world.routes.route("orders")
    assert route is not None
    assert [queue.perm for queue in route.queues] == [4]


async def test_whose_line_a_stranger_had_registers_again() -> None:
    world = NameServerBench(logs={A: log(9), B: log(9), C: log(9)})
    for addr, broker_id in ((A, 1), (B, 2), (C, 2)):
        assert (await world.request(addr, broker_id, point=at(5))).code == 0
    assert B not in world.shown().values()
    with_a_leader(world)
    assert (await world.request(A, 0, point=at(6), term=4)).code == 0
    assert B in world.rung
    world.rung.clear()
    await world.request(B, 2, point=at(6))
    assert world.shown() == {0: A, 2: B}


async def test_an_answer_that_comes_late_registers_nobody() -> None:
    """A later registration may have said that it leads; and what has ended registers nothing."""
    world = NameServerBench(logs={A: log(9)})
    refused: list[str] = []

    async def register() -> None:
        try:
            await world.register(A, 1, index=5)
        except NotYetError as error:
            refused.append(str(error))

    for ending in (register, None):
        world.may_answer = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(register)
            await trio.testing.wait_all_tasks_blocked()
            if ending is None:
                world.registrants.closed(A)
            else:
                nursery.start_soon(ending)
                await trio.testing.wait_all_tasks_blocked()
            world.may_answer.set()
        assert len(refused) == 1, refused
        refused.clear()
        world.registrants.closed(A)


async def test_how_often_one_host_makes_us_ask_in_vain_is_bounded() -> None:
    world = NameServerBench(logs={A: log(9)})
    codes: list[int] = []

    async def lie(number: int) -> None:
        codes.append((await world.request(f"10.1.0.{number}:1", 0, point=at(5))).code)

    async with trio.open_nursery() as nursery:
        for number in range(3 * VAIN_CHECKS_MAX):
            nursery.start_soon(lie, number)
    assert len(world.asked) == codes.count(ResponseCode.SYSTEM_ERROR) == VAIN_CHECKS_MAX
    assert codes.count(ResponseCode.SYSTEM_BUSY) == 2 * VAIN_CHECKS_MAX
    refused = await world.request(A, 0, point=at(5))
    assert (refused.code, HOST in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    assert (await world.request(A, 0, point=at(5), host="10.9.9.8")).code == 0
    world.now_ms = 1000
    assert (await world.request(A, 0, point=at(5))).code == 0


async def test_the_honest_brokers_of_one_host_register_all_at_once() -> None:
    """Whatever number of groups a machine has: after a restart of the name server all of them come together."""
    world = NameServerBench()
    brokers = [
        (f"broker-{group}", f"10.0.1.{group}:{port}") for group in range(20) for port in (1, 2, 3)
    ]
    codes: list[int] = []
    world.logs = {addr: log(9) for _, addr in brokers}
    world.members = {addr: {other: True for _, other in brokers} for _, addr in brokers}

    async def come(name: str, addr: str) -> None:
        broker_id = int(addr[-1]) - 1
        codes.append(
            (await world.request(addr, broker_id, point=at(3 + broker_id), name=name)).code
        )

    world.may_answer = trio.Event()
    async with trio.open_nursery() as nursery:
        for name, addr in brokers:
            nursery.start_soon(come, name, addr)
        await trio.testing.wait_all_tasks_blocked()
        world.may_answer.set()
    assert codes == [0] * len(brokers)


@pytest.mark.parametrize("name", [NAME, "*"])
async def test_signatures_are_over_everything(name: str) -> None:
    world = NameServerBench(secrets={name: "secret"}, logs={A: log(9)})
    ext = {"brokerName": NAME, "term": "5"}

    def check(ext: dict[str, str], body: bytes, connection: str = "one") -> None:
        world.registrants.check_signature(NAME, connection, ext, body)

    with pytest.raises(UnsignedRegistrationError) as refused:
        check(ext, b"body")
    signed = {**ext, PROOF_FIELD: registration_proof("secret", refused.value.nonce, ext, b"body")}
    check(signed, b"body")
    for wrong in ({**signed, "term": "6"}, {**signed, "more": ""}, {**signed, PROOF_FIELD: "é"}):
        with pytest.raises(UnsignedRegistrationError):
            check(wrong, b"body")
    with pytest.raises(UnsignedRegistrationError):
        check(signed, b"another body")
    other = {**ext, PROOF_FIELD: registration_proof("other", refused.value.nonce, ext, b"body")}
    with pytest.raises(UnsignedRegistrationError):
        check(other, b"body")
    replayed = {**ext, PROOF_FIELD: registration_proof("secret", "old nonce", ext, b"body")}
    with pytest.raises(UnsignedRegistrationError):
        check(replayed, b"body")


async def test_names_without_a_secret_need_no_signature() -> None:
    world = NameServerBench(secrets={"broker-b": "secret"}, logs={A: log(9)})
    world.registrants.check_signature(NAME, "one", {}, b"")
    assert await world.register(A, 0, index=5) == (True, True)


async def test_signed_brokers_are_not_asked_whose_they_are_but_compared() -> None:
    world = NameServerBench(secrets={NAME: "secret"}, logs={A: log(9), C: log(9, founded=8)})
    assert await world.register(A, 0, index=5) == (True, True)
    with pytest.raises(NameTakenError):
        await world.register(C, 0, index=7)
    assert world.asked == [(C, False, 5)]


async def test_the_secret_of_one_name_takes_no_broker_out_of_another() -> None:
    world = NameServerBench(secrets={NAME: "secret", "broker-b": "another"}, logs={A: log(9)})
    await world.register(A, 0, index=5)
    for token in ("", token_of(B)):
        with pytest.raises(RefusedRegistrationError):
            await world.register(A, 0, name="broker-b", token=token, connection="thief")
    assert {member.broker_addr for member in world.routes.members(NAME)} == {A}
    moved = await world.register(A, 0, name="broker-b", connection="after its restart")
    assert moved == (True, False), "it has answered for itself"


async def test_who_took_a_free_address_keeps_it_from_nobody_and_never_has_it_again() -> None:
    world = NameServerBench(secrets={NAME: "secret", "broker-b": "another"}, logs={A: log(9)})
    await world.register(A, 0, name="broker-b", token="", connection="thief")
    assert await world.register(A, 0, index=5) == (True, True)
    for _ in range(2):
        with pytest.raises(RefusedRegistrationError):
            await world.register(A, 0, name="broker-b", token="", connection="thief")
    assert {member.broker_addr for member in world.routes.members(NAME)} == {A}


async def test_an_address_that_came_back_during_the_questions_is_not_taken() -> None:
    world = NameServerBench(
        secrets={NAME: "secret", "broker-b": "another"}, logs={A: log(9), B: log(9)}
    )
    await world.register(B, 0, name="broker-b", index=5)
    world.may_answer = trio.Event()
    ends: list[bool] = []

    async def steal() -> None:
        with pytest.raises(RefusedRegistrationError):
            await world.register(A, 1, name="broker-b", token="", index=5, connection="thief")
        ends.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(steal)
        await trio.testing.wait_all_tasks_blocked()
        assert await world.register(A, 0, index=5) == (True, True), "the first of its name"
        world.may_answer.set()
    assert ends == [True]
    assert {member.broker_addr for member in world.routes.members(NAME)} == {A}


async def test_of_two_groups_that_come_together_one_is_first() -> None:
    world = NameServerBench(logs={A: log(9), C: log(9, founded=8)})
    refused: list[str] = []

    async def come(addr: str) -> None:
        try:
            await world.register(addr, 0, index=5)
        except NameTakenError:
            refused.append(addr)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come, A)
        nursery.start_soon(come, C)
    assert len(refused) == 1
    assert {member.broker_addr for member in world.routes.members(NAME)} == {A, C} - set(refused)


async def test_who_fell_silent_is_compared_again() -> None:
    """Another group may have the name by then."""
    world = NameServerBench(logs={A: log(9), C: log(9, founded=8)})
    await world.register(A, 0, index=5)
    world.now_ms = 120_000
    world.routes.expire(world.now_ms)
    await world.register(C, 0, index=5)
    with pytest.raises(NameTakenError):
        await world.register(A, 0, index=6)


def test_a_dispute_is_told_at_once_and_ends_when_nobody_tries() -> None:
    disputes = Disputes()
    assert disputes.rival_of(NAME, 0) == ""
    assert disputes.note(NAME, rival=C, now_ms=0) == (True, True)
    assert disputes.note(NAME, rival=C, now_ms=RING_MS - 1) == (False, False)
    assert disputes.note(NAME, rival=B, now_ms=RING_MS) == (False, True)
    assert disputes.rival_of(NAME, RING_MS + DISPUTE_MS) == B
    assert disputes.rival_of(NAME, RING_MS + DISPUTE_MS + 1) == ""
    assert disputes.note(NAME, rival=C, now_ms=10 * DISPUTE_MS) == (True, True)
    disputes.settle(NAME)
    assert disputes.rival_of(NAME, 10 * DISPUTE_MS) == ""
    disputes.settle(NAME)


async def test_nothing_is_kept_of_a_connection_that_ended_before_its_turn() -> None:
    world = NameServerBench(secrets={NAME: "secret"})
    handlers = RequestHandlers(world.routes, LocalKv(None), lambda: 0, world.registrants)
    ext = identity_ext(BrokerIdentity("main", NAME, A, 0, term=3)) | {TOKEN_FIELD: token_of(A)}
    request = RemotingCommand(code=RequestCode.REGISTER_BROKER, opaque=1, ext=ext)
    asker = RequestSender("its connection", A, is_closed=lambda: True)
    assert handlers.is_slow(request, asker)
    world.registrants.closed("its connection")
    refusal = await handlers.answer_slow(request, asker)
    assert refusal.code == ResponseCode.NO_PERMISSION
    assert not world.registrants._nonces
