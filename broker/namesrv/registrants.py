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
whether a member of theirs serves clients at the newcomer's address. What only followers without a leader could say is
not waited for: they may be cut off from the newcomer.

It must not know topics, nor change the routes: it only reads who holds a name.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple, Protocol

import trio

from broker.namesrv.errors import (
    NameTakenError,
    NotYetError,
    RefusedRegistrationError,
    UnsignedRegistrationError,
)
from broker.namesrv.routes import Member, RouteTable
from dledger import Index
from dledger_mq.net.address import Address, parse_address
from dledger_mq.remoting.log_point import LogPoint
from dledger_mq.remoting.registrant import PROOF_FIELD, TOKEN_FIELD, is_token, registration_proof
from dledger_mq.remoting.registration import BrokerIdentity
from dledger_mq.remoting.route import LEADER_ID

ASKS_PER_S_MAX: Final = 32
"""The times that one host can make the name server connect back."""

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
    """

    is_proven: bool
    is_placed: bool


class _Known(NamedTuple):
    """The broker that a connection was shown to belong to.

    Attributes:
        is_placed: its log was compared, or was the first.
    """

    broker_addr: str
    broker_name: str
    token: str | None
    is_placed: bool


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
        self._second = 0
        self._asks: dict[str, int] = {}

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
        """Return True if nothing has to be found out: it is foreign, or was proven and compared."""
        if not self._secrets(identity.broker_name) and not is_token(ext.get(TOKEN_FIELD)):
            return True
        known = self._known_of(identity, connection, ext)
        is_registered = self._routes.is_registered(identity.broker_addr, connection)
        return known is not None and known.is_placed and is_registered

    def standing(
        self, identity: BrokerIdentity, connection: Hashable, ext: Mapping[str, str]
    ) -> RegistrationStatus:
        """Return what is known of a registration by now."""
        known = self._known_of(identity, connection, ext)
        return RegistrationStatus(known is not None, known is not None and known.is_placed)

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
            identity: who registers, and is not known.
            connection: over which it came.
            ext: of the registration.
            point: how far its sender's log is committed.
            host: where it came from; how often it can make us ask is bounded.

        Raises:
            RefusedRegistrationError: no broker at its address confirms it.
            NotYetError: that, or whose log it has, cannot be known now; or it is outdated.
            NameTakenError: its log is not that of the brokers that have its name.
        """
        turn = self._turns[connection] = self._turns.get(connection, 0) + 1
        await self._find_out(identity, connection, ext, point=point, host=host)
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
        host: str,
    ) -> None:
        """Prove a registrant, and compare its log with the name's holder until nobody else took the name meanwhile."""
        address = _address(identity.broker_addr)
        if self._known_of(identity, connection, ext) is None:
            if not self._secrets(identity.broker_name):
                await self._prove(address, ext[TOKEN_FIELD], host)
            self._know(identity, connection, ext, is_placed=False)
        compared: Member | None = None
        for _ in range(_COMPARISONS_MAX):
            holder = self._holder(identity)
            if holder == compared:
                # At first: nobody has the name. Later: nobody else came meanwhile.
                self._know(identity, connection, ext, is_placed=point is not None)
                return
            assert holder is not None or compared is not None, (
                f"{identity.broker_name} is held by nobody, as it was: there is nothing to compare"
            )
            if holder is not None:
                silent, denial = await self._vouch(identity, host)
                is_same = await self._is_same_log(identity, point, holder, host=host, silent=silent)
                if denial is not None:
                    raise denial
                if not is_same:
                    return
            compared = holder
        raise NotYetError(
            f"others register under {identity.broker_name} at this moment: {_COMPARISONS_MAX} times somebody else had "
            "the name after a comparison; try again"
        )

    async def _prove(self, address: Address, token: str, host: str) -> None:
        answer = await self._ask_bounded(address, host, token=token)
        if answer is None or not answer.is_own:
            raise RefusedRegistrationError(
                f"{_denial(address, answer)}; the name server must be able to connect there, or have the group's "
                "secret (--secret-file)"
            )

    def _holder(self, identity: BrokerIdentity) -> Member | None:
        """Return who has the name at another address: the one that named the furthest place, or None."""
        return next(iter(self._others(identity)), None)

    def _others(self, identity: BrokerIdentity) -> list[Member]:
        """Return who has the name at other addresses: who named the furthest place first."""
        members = self._routes.members(identity.broker_name)
        others = [member for member in members if member.broker_addr != identity.broker_addr]
        return sorted(others, key=lambda member: member.point.index, reverse=True)

    async def _is_same_log(
        self,
        identity: BrokerIdentity,
        point: LogPoint | None,
        holder: Member,
        *,
        host: str,
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
                answer = await self._ask_bounded(_address(asked), host, index=index)
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

    async def _vouch(
        self, identity: BrokerIdentity, host: str
    ) -> tuple[set[str], NotYetError | None]:
        """Ask those who have the name if they know the newcomer; a signature proves more.

        Returns:
            The addresses that did not answer; and the refusal, if one of them does not know it, and none does.
        """
        if self._secrets(identity.broker_name):
            return set(), None
        answers: dict[str, bool | None] = {}
        silent: set[str] = set()
        too_often: list[NotYetError] = []

        async def ask(addr: str) -> None:
            try:
                answer = await self._ask_bounded(_address(addr), host, member=identity.broker_addr)
            except NotYetError as error:
                too_often.append(error)
                return
            answers[addr] = None if answer is None else answer.is_member
            if answer is None:
                silent.add(addr)
            elif answer.is_member:
                asking.cancel_scope.cancel()

        async with trio.open_nursery() as asking:
            for member in self._others(identity)[:_VOUCHERS_MAX]:
                asking.start_soon(ask, member.broker_addr)
        if True in answers.values():
            return silent, None
        if False in answers.values():
            return silent, NotYetError(
                f"the registered members of {identity.broker_name} know of none that serves clients at "
                f"{identity.broker_addr}"
            )
        return silent, too_often[0] if too_often else None

    async def _ask_bounded(
        self,
        address: Address,
        host: str,
        *,
        token: str | None = None,
        index: Index | None = None,
        member: str | None = None,
    ) -> Answer | None:
        """Ask a process back.

        The rate is bounded per host, since each registration makes us connect to an address that it names.
        """
        second = self._now_ms() // 1000
        if second != self._second:
            self._second = second
            self._asks.clear()
        self._asks[host] = self._asks.get(host, 0) + 1
        if self._asks[host] > ASKS_PER_S_MAX:
            raise NotYetError(
                f"more than {ASKS_PER_S_MAX} registrations of {host} had to be asked back within a second; try again"
            )
        return await self._ask(address, token=token, index=index, member=member)

    def _know(
        self,
        identity: BrokerIdentity,
        connection: Hashable,
        ext: Mapping[str, str],
        *,
        is_placed: bool,
    ) -> None:
        token = ext.get(TOKEN_FIELD)
        self._known[connection] = _Known(
            identity.broker_addr, identity.broker_name, token, is_placed
        )

    def _known_of(
        self, identity: BrokerIdentity, connection: Hashable, ext: Mapping[str, str]
    ) -> _Known | None:
        known = self._known.get(connection)
        claimed = _Known(
            identity.broker_addr,
            identity.broker_name,
            ext.get(TOKEN_FIELD),
            is_placed=known is not None and known.is_placed,
        )
        return known if known == claimed else None


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
