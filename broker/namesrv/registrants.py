"""The standing of brokers that register: proven or foreign, of the group that has the name or of another.

A registration is *proven* when the process at the claimed address says that it is its own (the name server asks
back, `dledger_mq/remoting/registrant.py`), or when it is signed with the secret that the name server has for the
broker name. Asking back is done once for each connection, so a change of leader costs nothing; a signature is
looked at each time. All others are *foreign*: RocketMQ's own brokers, and strangers.

Proven brokers of one name must be of one group. Groups differ in their logs: two members have the same chain
CRC at every index that both have committed, two groups that only share a name do not. The newcomer is compared
with the proven broker of the name that named the furthest place. Who cannot be compared yet has to try again;
but where it is the one in the name already that does not answer, a leader is taken, and compared when it registers
next.

Anybody can read a log where there is no secret, and claim to have it. So those who have the name are asked as well
whether a member of theirs serves clients at the newcomer's address. A member without a leader cannot say so: it may be
cut off from the newcomer, which is let in. But it is *not vouched for* then, and nor does it vouch for others: nobody
is compared with it, no place in the log is believed from it, and those who have the name are asked about it again at
each of its registrations, and of theirs, until one says yes; or no, and it has to leave.

It must not know topics, nor change the routes: it only reads who holds a name.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NamedTuple, Protocol

import trio

from broker.namesrv.check_turns import CheckTurns
from broker.namesrv.errors import (
    NameTakenError,
    NotYetError,
    RefusedRegistrationError,
    StrangerError,
    UnsignedRegistrationError,
)
from broker.namesrv.routes import Member, ProvenBroker, RouteTable
from dledger import Index
from dledger_mq.net.address import Address, parse_address
from dledger_mq.remoting.log_point import LogPoint
from dledger_mq.remoting.registrant import PROOF_FIELD, TOKEN_FIELD, is_token, registration_proof
from dledger_mq.remoting.registration import BrokerIdentity
from dledger_mq.remoting.route import LEADER_ID

_COMPARISONS_MAX: Final = 3
_VOUCHERS_MAX: Final = 3


class Answer(NamedTuple):
    """The answer of a broker that was asked back.

    Attributes:
        is_own: the registration is its own.
        chain_crc: of its entry at the index that was asked for; None: it keeps none.
        is_member: whether a member of its group serves clients at the address that was asked for; None: it cannot say.
    """

    is_own: bool
    chain_crc: int | None
    is_member: bool | None = None


class Ask(Protocol):
    """Asks a broker; returns None when nobody answers in time, or it is no broker of ours."""

    async def __call__(
        self,
        address: Address,
        *,
        token: str | None = None,
        index: Index | None = None,
        member: str | None = None,
    ) -> Answer | None:
        """Ask on a connection of its own; bounded in time."""


class RegistrationStatus(NamedTuple):
    """The standing of a registration.

    Invariant: a placed one is proven.

    Attributes:
        is_proven: its sender was shown to be who it says.
        is_placed: and its log to be that of the name's group.
        is_vouched: and it to be a member, or the first one of the name: it may say what others hear of the group.
    """

    is_proven: bool
    is_placed: bool
    is_vouched: bool = False


class _Known(NamedTuple):
    """The broker that a connection was shown to belong to.

    Attributes:
        is_own: a broker at the address said that it made the registration; who signs is asked only where the address
            is heard under another name, for a secret may be one name's own.
        is_placed: its log was compared, or was the first.
        is_vouched: it signs, was the first, or a broker that is vouched for itself knows it as a member.
    """

    broker_addr: str
    broker_name: str
    token: str | None
    is_own: bool
    is_placed: bool
    is_vouched: bool

    def is_of(self, identity: BrokerIdentity) -> bool:
        """Return True if it is about this broker: the connection may have registered another one since."""
        return (self.broker_addr, self.broker_name) == (identity.broker_addr, identity.broker_name)


class Judgement(NamedTuple):
    """The outcome of asking about those of a name that nobody vouched for.

    Attributes:
        members: brokers that somebody vouched for.
        strangers: brokers that are no members.
    """

    members: list[ProvenBroker]
    strangers: list[ProvenBroker]


class _Vouching(NamedTuple):
    """The result of asking who a broker is.

    Attributes:
        is_vouched: one says that it is a member, or there is nobody to ask.
        silent: the addresses that did not answer.
        denial: the refusal, if one of them does not know it, and none does.
    """

    is_vouched: bool
    silent: Container[str] = ()
    denial: StrangerError | None = None


class Registrants:
    """Knowledge of connections; it ends with them."""

    def __init__(
        self,
        routes: RouteTable,
        ask: Ask,
        *,
        secrets: Callable[[str], Sequence[str]],
        draw_nonce: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        """Begin without any known connection.

        Args:
            routes: know who holds a name.
            ask: asks a broker back.
            secrets: those with which registrations of a broker name may be signed; none: they need not be.
            draw_nonce: a text that nobody can guess.
            now_ms: a clock that does not go back.
        """
        self._routes = routes
        self._ask = ask
        self._secrets = secrets
        self._draw_nonce = draw_nonce
        self._now_ms = now_ms
        self._known: dict[Hashable, _Known] = {}
        self._nonces: dict[Hashable, str] = {}
        self._signed: set[Hashable] = set()
        self._turns: dict[Hashable, int] = {}
        self._check_turns = CheckTurns(now_ms)
        self._judging_turns = CheckTurns(now_ms)
        self._judging: dict[str, bool] = {}
        """The names whose brokers are asked about now, and whether that is to be done once more."""

    def closed(self, connection: Hashable) -> None:
        """Forget a connection."""
        self._known.pop(connection, None)
        self._nonces.pop(connection, None)
        self._signed.discard(connection)
        self._turns.pop(connection, None)

    def has_signed(self, connection: Hashable) -> bool:
        """Return True if a registration came over a connection that was signed with a secret of its broker name."""
        return connection in self._signed

    def check_signature(
        self, name: str, connection: Hashable, ext: Mapping[str, str], body: bytes
    ) -> None:
        """Check the signature of a registration of a name that has a secret.

        Raises:
            UnsignedRegistrationError: it is not; its nonce is to be used.
        """
        accepted = self._secrets(name)
        if not accepted:
            return
        nonce = self._nonces.get(connection)
        if nonce is None:
            nonce = self._nonces[connection] = self._draw_nonce()
        proof = ext.get(PROOF_FIELD, "")
        expected = [registration_proof(secret, nonce, ext, body) for secret in accepted]
        if not any(hmac.compare_digest(proof.encode(), each.encode()) for each in expected):
            raise UnsignedRegistrationError(
                f"registrations of {name} must be signed, and this one "
                + ("has a signature with another secret" if proof else "is not")
                + ": give its brokers the secret that this name server has (--secret-file)",
                nonce,
            )
        self._signed.add(connection)

    def is_known(
        self, identity: BrokerIdentity, connection: Hashable, ext: Mapping[str, str]
    ) -> bool:
        """Return True if nothing has to be found out: it is foreign, or all is known of it and of all of its name."""
        if not self._secrets(identity.broker_name) and not is_token(ext.get(TOKEN_FIELD)):
            return True
        return self._is_settled(identity, connection, ext) and not self._doubtful(
            identity.broker_name
        )

    def _is_settled(
        self, identity: BrokerIdentity, connection: Hashable, ext: Mapping[str, str]
    ) -> bool:
        known = self._known_of(identity, connection, ext)
        is_registered = self._routes.is_registered(identity.broker_addr, connection)
        return known is not None and known.is_placed and known.is_vouched and is_registered

    def standing(
        self, identity: BrokerIdentity, connection: Hashable, ext: Mapping[str, str]
    ) -> RegistrationStatus:
        """Return what is known of a registration by now."""
        known = self._known_of(identity, connection, ext)
        if known is None or (not known.is_own and self._routes.is_proven_elsewhere(identity)):
            return RegistrationStatus(is_proven=False, is_placed=False)
        return RegistrationStatus(
            is_proven=True, is_placed=known.is_placed, is_vouched=known.is_vouched
        )

    async def find_out(
        self,
        identity: BrokerIdentity,
        connection: Hashable,
        ext: Mapping[str, str],
        *,
        point: LogPoint | None,
        host: str,
    ) -> None:
        """Ask back, and compare with who holds the name. Afterwards `standing` has the result.

        Args:
            identity: who registers.
            connection: over which it came.
            ext: of the registration.
            point: how far its sender's log is committed.
            host: where it came from; how often it can make us ask in vain is bounded.

        Raises:
            RefusedRegistrationError: no broker at its address confirms it.
            NotYetError: that, or whose log it has, cannot be known now; or it is outdated.
            StrangerError: those who have the name know of no such member.
            NameTakenError: its log is not that of the brokers that have its name.
        """
        if self._is_settled(identity, connection, ext):
            return
        turn = self._turns[connection] = self._turns.get(connection, 0) + 1
        async with self._check_turns.turn(host) as check:
            await self._find_out(identity, connection, ext, point=point)
            known = self._known_of(identity, connection, ext)
            check.is_in_vain = known is None or not known.is_vouched
        if self._turns.get(connection) != turn:
            raise NotYetError(
                f"a later registration came over the connection of {identity.broker_addr}, or it ended: this one "
                "counts no more"
            )

    async def _find_out(
        self,
        identity: BrokerIdentity,
        connection: Hashable,
        ext: Mapping[str, str],
        *,
        point: LogPoint | None,
    ) -> None:
        """Prove a registrant, and compare its log with the name's holder until nobody else took the name meanwhile."""
        known = self._known_of(identity, connection, ext)
        is_own = known is not None and known.is_own
        is_own = is_own or await self._is_asked(identity, ext.get(TOKEN_FIELD, ""))
        if known is None or known.is_own != is_own:
            self._know(identity, connection, ext, is_own=is_own)
        elif known.is_placed and self._routes.is_registered(identity.broker_addr, connection):
            vouching = await self._vouch(identity, connection)
            if vouching.denial is not None:
                raise vouching.denial
            is_vouched = vouching.is_vouched
            self._know(
                identity, connection, ext, is_own=is_own, is_placed=True, is_vouched=is_vouched
            )
            return
        for _ in range(_COMPARISONS_MAX):
            holder = self._holder(identity)
            vouching = await self._vouch(identity, connection)
            is_same = holder is None or await self._is_same_log(
                identity, point, holder, silent=vouching.silent
            )
            if vouching.denial is not None:
                raise vouching.denial
            if not is_same or self._holder(identity) == holder:
                is_placed = is_same and point is not None
                is_vouched = vouching.is_vouched or (known is not None and known.is_vouched)
                found = {"is_placed": is_placed, "is_vouched": is_vouched}
                self._know(identity, connection, ext, is_own=is_own, **found)
                return
        raise NotYetError(
            f"others register under {identity.broker_name} at this moment: {_COMPARISONS_MAX} times somebody else had "
            "the name after a comparison; try again"
        )

    async def _is_asked(self, identity: BrokerIdentity, token: str) -> bool:
        """Ask a registrant unless its signature suffices; return whether it was asked, and has confirmed."""
        address = _address(identity.broker_addr)
        if self._secrets(identity.broker_name) and not self._routes.is_proven_elsewhere(identity):
            return False
        await self._prove(address, token)
        return True

    async def _prove(self, address: Address, token: str) -> None:
        answer = await self._ask(address, token=token)
        if answer is None or not answer.is_own:
            raise RefusedRegistrationError(
                f"{_denial(address, answer)}; the name server must be able to connect there, or have the group's "
                "secret (--secret-file)"
            )

    def _holder(self, identity: BrokerIdentity) -> Member | None:
        """Return who has the name at another address, or None.

        It is the one that named the furthest place, of those that may vouch if one of them named any: others may name
        any place, and say of each log that it is another one.
        """
        members = self._routes.members(identity.broker_name)
        others = [member for member in members if member.broker_addr != identity.broker_addr]
        trusted = {broker.identity.broker_addr for broker in self._trusted(identity)}
        candidates = [member for member in others if member.broker_addr in trusted] or others
        return max(candidates, key=lambda member: member.point.index, default=None)

    def _is_vouched(self, broker: ProvenBroker) -> bool:
        known = self._known.get(broker.connection)
        return known is not None and known.is_vouched and known.is_of(broker.identity)

    def _doubtful(self, name: str) -> list[ProvenBroker]:
        """Return the proven brokers of a name that nobody vouched for yet."""
        brokers = self._routes.proven_brokers(name)
        return [broker for broker in brokers if not self._is_vouched(broker)]

    async def judge_doubtful(self, name: str) -> Judgement:
        """Ask again about those of a name that nobody vouched for, and note who is a member.

        While that is under way others do not wait for it: it is done once more at its end, and they have an empty
        judgement. So whoever lets a question wait holds up one registration.
        """
        judgement = Judgement([], [])
        if name in self._judging:
            self._judging[name] = True
            return judgement
        self._judging[name] = True
        try:
            while self._judging[name]:
                self._judging[name] = False
                async with trio.open_nursery() as judging:
                    for broker in self._doubtful(name):
                        judging.start_soon(self._judge_in_turn, broker, judgement)
        finally:
            del self._judging[name]
        return judgement

    async def _judge_in_turn(self, broker: ProvenBroker, judgement: Judgement) -> None:
        """Judge a broker if its host has a turn left; the one in the leader's place in any case.

        Turns count by name: whoever uses up those of its host in one keeps nobody in another.
        """
        if broker.leads:
            await self._judge(broker, judgement)
            return
        host = _address(broker.identity.broker_addr).host
        with suppress(NotYetError):
            async with self._judging_turns.turn(
                f"{host} as {broker.identity.broker_name}"
            ) as check:
                check.is_in_vain = not await self._judge(broker, judgement)

    async def _judge(self, broker: ProvenBroker, judgement: Judgement) -> bool:
        """Ask about a broker that nobody vouched for; return whether there was a yes or a no."""
        known = self._known.get(broker.connection)
        vouching = await self._vouch(broker.identity, broker.connection)
        if known is None or self._known.get(broker.connection) is not known:
            return False  # it left, or another registration came meanwhile
        if vouching.denial is not None:
            judgement.strangers.append(broker)
        elif vouching.is_vouched and known.is_of(broker.identity):
            self._known[broker.connection] = known._replace(is_vouched=True)
            judgement.members.append(broker)
        return vouching.denial is not None or vouching.is_vouched

    async def _is_same_log(
        self,
        identity: BrokerIdentity,
        point: LogPoint | None,
        holder: Member,
        *,
        silent: Container[str],
    ) -> bool:
        """Compare two logs at the last place that both have; return False if the holder cannot say so now.

        Raises:
            NotYetError: a follower, or a log that does not show what it has.
            NameTakenError: they are two.
        """
        if point is None:
            raise NotYetError(
                f"{identity.broker_addr} knows of no committed entry yet, so its log cannot be compared with that of "
                f"{holder.broker_addr}; try again"
            )
        theirs = holder.point
        is_ahead = point.index > theirs.index
        asked = identity.broker_addr if is_ahead else holder.broker_addr
        known = theirs.chain_crc if is_ahead else point.chain_crc
        found: int | None = theirs.chain_crc
        if point.restoration != theirs.restoration:
            found = None
        elif point.index != theirs.index:
            index = Index(min(point.index, theirs.index))
            answer: Answer | None = None
            if asked not in silent:
                answer = await self._ask(_address(asked), index=index)
            if answer is None or answer.chain_crc is None:
                if answer is None and not is_ahead and identity.broker_id == LEADER_ID:
                    return False
                raise NotYetError(
                    f"{asked} {'does not answer' if answer is None else 'keeps no checksum'} for entry {index}: the "
                    f"log of {identity.broker_addr} cannot be compared with that of {holder.broker_addr}; try again"
                )
            found = answer.chain_crc
        if found != known:
            raise NameTakenError(
                f"{identity.broker_name} is the name of another group, with a broker at {holder.broker_addr}; its log "
                f"is not that of {identity.broker_addr}: give one of the two groups another brokerName",
                holder.broker_addr,
            )
        return True

    async def _vouch(self, identity: BrokerIdentity, connection: Hashable) -> _Vouching:
        """Ask those who have the name if they know a broker as a member; a signature proves more."""
        if self._secrets(identity.broker_name) and connection in self._signed:
            return _Vouching(is_vouched=True)
        vouchers = self._vouchers(identity)
        if not vouchers:
            return _Vouching(is_vouched=True)  # the first one
        answers: dict[str, bool | None] = {}
        silent: set[str] = set()

        async def ask(addr: str) -> None:
            answer = await self._ask(_address(addr), member=identity.broker_addr)
            answers[addr] = None if answer is None else answer.is_member
            if answer is None:
                silent.add(addr)
            elif answer.is_member:
                asking.cancel_scope.cancel()

        async with trio.open_nursery() as asking:
            for addr in vouchers:
                asking.start_soon(ask, addr)
        if True in answers.values():
            return _Vouching(is_vouched=True, silent=silent)
        denial = None
        if False in answers.values():
            denial = StrangerError(
                f"the registered members of {identity.broker_name} know of none that serves clients at "
                f"{identity.broker_addr}"
            )
        return _Vouching(is_vouched=False, silent=silent, denial=denial)

    def _vouchers(self, identity: BrokerIdentity) -> list[str]:
        """Return who of a name is to say whether a broker is a member: those that named the furthest place first."""
        trusted = self._trusted(identity)
        trusted.sort(key=lambda each: -1 if each.point is None else each.point.index, reverse=True)
        return [each.identity.broker_addr for each in trusted[:_VOUCHERS_MAX]]

    def _trusted(self, identity: BrokerIdentity) -> list[ProvenBroker]:
        """Return the brokers of a name at other addresses that are vouched for.

        Where none is, as the first one has left, it is the one that came next.
        """
        brokers = self._routes.proven_brokers(identity.broker_name)
        others = [each for each in brokers if each.identity.broker_addr != identity.broker_addr]
        return [each for each in others if self._is_vouched(each)] or others[:1]

    def _know(
        self,
        identity: BrokerIdentity,
        connection: Hashable,
        ext: Mapping[str, str],
        *,
        is_own: bool,
        is_placed: bool = False,
        is_vouched: bool = False,
    ) -> None:
        """Note what is known of the registrations over a connection."""
        self._known[connection] = _Known(
            identity.broker_addr,
            identity.broker_name,
            ext.get(TOKEN_FIELD),
            is_own=is_own,
            is_placed=is_placed,
            is_vouched=is_vouched,
        )

    def _known_of(
        self, identity: BrokerIdentity, connection: Hashable, ext: Mapping[str, str]
    ) -> _Known | None:
        known = self._known.get(connection)
        if known is None or not known.is_of(identity) or known.token != ext.get(TOKEN_FIELD):
            return None
        return known


def _denial(address: Address, answer: Answer | None) -> str:
    """Say why a registration is not confirmed by the broker at its address."""
    if answer is None:
        return f"no broker at {address} answered when it was asked to confirm this registration"
    return f"the broker at {address} says that this registration is not its own"


def _address(text: str) -> Address:
    """Read the address to ask back: an IP address and a port, nothing that has to be looked up.

    Raises:
        RefusedRegistrationError: it is none.
    """
    try:
        address = parse_address(text)
        ip_address(address.host)
    except ValueError as error:
        raise RefusedRegistrationError(
            f"the broker's address {text[:64]!r} is not an IP address and a port; nothing has changed"
        ) from error
    return address
