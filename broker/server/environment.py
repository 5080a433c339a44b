"""The process that a broker runs in, as its services see it: clocks, chance, tasks, and notices of others.

`Broker` makes one of the real process; the simulator (broker/testing) has a virtual one.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from broker.access.guard import AccessGuard
from broker.server.config import BrokerConfig
from broker.server.handlers.access_admin import KeepRules
from broker.server.handlers.assignments import FindRoute
from broker.server.handlers.disk_room import DiskRoom
from broker.server.handlers.settings_admin import KeepNodeSettings
from broker.server.mistakes import Mistakes
from broker.server.requests.linear import LinearReads
from broker.server.requests.origin import Outputs
from dledger import LogServer
from dledger_mq.net.address import Address

MakeLinear = Callable[[LogServer, Outputs, trio.Nursery], LinearReads]


@dataclass(frozen=True, slots=True)
class Environment:
    """The parts of a process that a broker runs on.

    Attributes:
        service_address: the address where clients connect.
        link_nonce: a text that only a node can know which has read the attributes of this process.
        wall_ms: returns the milliseconds since 1970, without jumps.
        monotonic_ms: returns the milliseconds of a clock that never goes back, for everything that waits.
        pick: returns a random number from 0 on, below its argument.
        key_numbers: two numbers that make the unique keys of this process its own.
        nursery: the nursery of the tasks that wait.
        clock_ahead_ms: returns the distance of the wall clock ahead of what most members show.
        loss_notice: returns what the group was found to have lost; empty: nothing.
        made: returns True if this node registers somewhere with a token.
        when_routed: calls back once the name servers know the topics of now, or cannot be waited for any longer.
        find_route: asks name servers for a topic's route and calls back with it; None: there are none to ask.
        disk_room: returns the room on the disk of the store; None: the disk cannot say.
        local_hour: returns the hour of the local day at a time in milliseconds since 1970.
        client_count: returns the number of clients' connections.
        stop_stage: returns how far an orderly stop is, in words; empty: none is wanted.
        node_settings: keeps changes of this node's own settings; None: they cannot be changed.
        settings_changed: is called with the settings once others hold.
        tls: returns what encrypts a link to another node; None: it is plain text.
        guard: decides which requests of clients may be carried out; None: all.
        access_rules: keeps the rules that `guard` goes by; None: there are none.
        make_linear: builds the service that confirms reads; it may start tasks in the nursery.
        mistakes: what becomes of errors that nobody expects. They go up, unless whoever makes the environment wants
            them kept in.
    """

    service_address: Address
    link_nonce: str
    wall_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    pick: Callable[[int], int]
    key_numbers: tuple[int, int]
    nursery: trio.Nursery
    clock_ahead_ms: Callable[[], int] = lambda: 0
    loss_notice: Callable[[], str] = lambda: ""
    made: Callable[[str], bool] = lambda _token: False
    when_routed: Callable[[Callable[[], None]], None] = lambda then: then()
    find_route: FindRoute | None = None
    disk_room: Callable[[], DiskRoom | None] = lambda: None
    local_hour: Callable[[int], int] = lambda at_ms: time.localtime(at_ms / 1000).tm_hour
    client_count: Callable[[], int] = lambda: 0
    stop_stage: Callable[[], str] = lambda: ""
    node_settings: KeepNodeSettings | None = None
    settings_changed: Callable[[BrokerConfig], None] = lambda _config: None
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    guard: AccessGuard | None = None
    access_rules: KeepRules | None = None
    make_linear: MakeLinear = LinearReads
    mistakes: Mistakes = field(default_factory=Mistakes)
