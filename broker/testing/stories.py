"""The language of the stories of brokers: a whole group, its clients moved by hand, failovers included.

Time, network and disks are simulated (`broker_cluster.py`); nothing goes wrong but what the story does. Commands, one
a line; NODE is a member, NAME a client, T/0 a queue, [x] may be left out:

    group n0 n1 n2                      start a group
    lead NODE                           let it lead, by a hand-over where another one does
    kill NODE     start NODE            kill -9; start it again
    cut NODE      heal                  it hears no other member, and none hears it; all links are whole
    run MS                              let time pass, and tell what comes to clients meanwhile
    NAME at NODE                        a client connects, and stays there
    NAME join GROUP TOPIC...            heartbeat of a consumer
    NAME produce GROUP                  heartbeat of a producer
    NAME send T/0 BODY key=K [level=1] [after=MS]  send; level: a delay level (here 150, 400, 900 and 1500 ms)
    NAME recall K                       take a message with `after` back
    NAME half T/0 BODY key=K group=G    send a half message
    NAME commit|rollback|leave K group=G [check]   say how its transaction ended; leave: unknown
    NAME pull T/0 from=0 group=G [hold=MS]         read
    NAME back K group=G max=N [level=0]            return the copy of the message that was seen last
    NAME offset T/0 group=G             ask for the group's offset
    NAME done T/0 OFFSET group=G        commit it
    NAME lock T/0 group=G               NAME unlock T/0 group=G
    open                                how many transactions are open
    equal                               whether all running members have equal digests

A request waits for its answer (at most 8 s), and prints it: what was stored or read, or the code and the remark's first
words. With the word `later` it does not wait: its answer is printed when it comes, as is all that a client gets
unasked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from broker.testing.broker_cluster import BrokerCluster
from broker.testing.settings import BrokerSimSettings
from broker.testing.sim_broker import SimBroker
from broker.testing.story_actors import Actor, Places, Queue
from dledger.raft.entry import Entry
from dledger.raft.ids import NodeId
from dledger.testing.datadriven import Arguments, Commands, ScriptError, begun
from dledger.testing.sim_node import SimNode

ANSWER_MS_MAX = 8_000
TOLD_MS = 20
"""The time by which a message has arrived that wants no answer."""
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
_VERDICTS = {"commit": COMMIT, "rollback": ROLLBACK, "leave": UNKNOWN}


class StoryCluster(BrokerCluster):
    """A group whose messages are judged by the script, not by the model of what random clients sent."""

    def applied(self, broker: SimBroker, node: SimNode, entry: Entry) -> None:
        """Check the log's own promises, as ever."""
        del broker
        self.checker.handed_out(node.node_id, [entry])


class Story:
    """Runs the commands of one script."""

    def __init__(self) -> None:
        self._settings = BrokerSimSettings(
            1,
            queue_count=1,
            snapshot_interval_ms=0,
            client_timeout_ms=ANSWER_MS_MAX,
            fault_weights={"heal": 1},
        )
        self._cluster: StoryCluster | None = None
        self._actors: dict[str, Actor] = {}
        self._places = Places({}, {}, {})
        self._commands = Commands(
            {
                "group": self._start,
                "lead": self._lead,
                "kill": lambda given: self.cluster.stop(self._node(given), power_loss=False),
                "start": lambda given: self.cluster.start(self._node(given)),
                "cut": self._cut,
                "heal": lambda _given: self.cluster.network.heal(),
                "run": lambda given: self._pass_time(
                    given.number_at(0, "a number of milliseconds")
                ),
                "open": self._open,
                "equal": self._equal,
            },
            otherwise=self._act,
        )
        self._print = self._commands.print
        self.run = self._commands.run
        self._deeds: dict[str, Callable[[Actor, Arguments], None]] = {
            "join": lambda who, given: who.join(given.words[0], given.words[1:]),
            "produce": lambda who, given: who.produce(given.words[0]),
            "send": self._send,
            "half": self._send_half,
            "recall": lambda who, given: who.recall(given.word(0, "a key")),
            "pull": self._pull,
            "back": self._give_back,
            "offset": lambda who, given: who.ask_offset(_queue(given), group=given.need("group")),
            "done": self._commit_offset,
            "lock": lambda who, given: who.lock(_queue(given), group=given.need("group")),
            "unlock": lambda who, given: who.unlock(_queue(given), group=given.need("group")),
        }

    @property
    def cluster(self) -> StoryCluster:
        """The group of this story."""
        return begun(self._cluster)

    # The group.

    def _start(self, given: Arguments) -> None:
        names = [f"n{number}" for number in range(len(given.words))]
        if list(given.words) != names:
            raise ScriptError("members are called n0, n1, ...")
        self._cluster = StoryCluster(self._settings)
        self._actors.clear()
        self._places = Places({}, {}, {})
        for node in self.cluster.nodes.values():
            self.cluster.start(node)
        self._wait(lambda: self._serving() is not None, "nobody leads")

    def _node(self, given: Arguments) -> SimNode:
        name = NodeId(given.words[0]) if given.words else NodeId("")
        if name not in self.cluster.nodes:
            raise ScriptError(f"name a member: {', '.join(self.cluster.nodes)}")
        return self.cluster.nodes[name]

    def _serving(self) -> NodeId | None:
        leader = self.cluster.leader()
        if leader is None or not self.cluster.brokers[leader.node_id].log.is_serving:
            return None
        return leader.node_id

    def _lead(self, given: Arguments) -> None:
        """Hand the lead over and wait; tried ten times, since a hand-over may fail by the rules of the protocol."""
        target = self._node(given).node_id

        def leads() -> bool:
            return self._serving() == target

        for _ in range(10):
            self._wait(lambda: self._serving() is not None, "nobody leads")
            if leads():
                return
            leader = self.cluster.leader()
            assert leader is not None, "somebody serves"
            with self.cluster.disk_of(leader):
                driver = self.cluster.brokers[leader.node_id].driver
                driver.request_transfer(target, lambda _outcome: None)
            self.cluster.run_until(self.cluster.now_ms + ANSWER_MS_MAX, leads)
        raise ScriptError(f"{target} does not get the lead")

    def _cut(self, given: Arguments) -> None:
        alone = self._node(given).node_id
        others = [other for other in self.cluster.voters if other != alone]
        self.cluster.network.cut_both([alone], others)

    def _pass_time(self, duration_ms: int) -> None:
        self.cluster.run_until(self.cluster.now_ms + duration_ms)

    def _wait(self, is_done: Callable[[], bool], otherwise: str) -> None:
        if not is_done() and not self.cluster.run_until(self.cluster.now_ms + 20_000, is_done):
            raise ScriptError(otherwise)

    def _open(self, _given: Arguments) -> None:
        leader = self._serving()
        if leader is None:
            raise ScriptError("nobody leads")
        self._print(f"{len(self.cluster.brokers[leader].state.transactions)} open")

    def _equal(self, _given: Arguments) -> None:
        self._pass_time(1_000)
        brokers = [self.cluster.brokers[node.node_id] for node in self.cluster.running()]
        digests = {(broker.state.applied_index, broker.state.digest()) for broker in brokers}
        self._print(f"{len(brokers)} members, {'equal' if len(digests) == 1 else 'NOT EQUAL'}")

    # Clients.

    def _act(self, name: str, line: str) -> None:
        """Let a client do what a line says that begins with its name."""
        deed, _, rest = line.partition(" ")
        given = Arguments.parse(rest)
        if deed == "at":
            self._actor(name).go_to(self._node(given).node_id)
            return
        if name not in self._actors:
            raise ScriptError(f"no such command, nor client: {name}")
        who = self._actors[name]
        if deed in _VERDICTS:
            is_check = "check" in given.words
            who.end(given.words[0], _VERDICTS[deed], group=given.need("group"), is_check=is_check)
        elif deed in self._deeds:
            self._deeds[deed](who, given)
        else:
            raise ScriptError(f"clients do not know how to {deed}")
        if "later" in given.words:
            return
        if who.is_waiting:
            end_ms = self.cluster.now_ms + ANSWER_MS_MAX + 10
            self.cluster.run_until(end_ms, lambda: not who.is_waiting)
        else:
            self._pass_time(TOLD_MS)

    def _actor(self, name: str) -> Actor:
        if name not in self._actors:
            actor = Actor(self.cluster, self._settings, name, Counter())
            actor.print_line, actor.places = self._print, self._places
            self._actors[name] = actor
        return self._actors[name]

    def _send(self, who: Actor, given: Arguments) -> None:
        properties = {"UNIQ_KEY": given.need("key")}
        if "level" in given.named:
            properties["DELAY"] = given.named["level"]
        if "after" in given.named:
            properties["TIMER_DELAY_MS"] = given.named["after"]
        who.send(
            _queue(given), given.word(1, "a body"), properties, group=given.named.get("group", "P")
        )

    def _send_half(self, who: Actor, given: Arguments) -> None:
        group = given.need("group")
        properties = {"UNIQ_KEY": given.need("key"), "TRAN_MSG": "true", "PGROUP": group}
        who.send(_queue(given), given.word(1, "a body"), properties, group=group)

    def _pull(self, who: Actor, given: Arguments) -> None:
        hold_ms = given.number_or("hold", 0)
        who.pull(_queue(given), given.number("from"), group=given.need("group"), hold_ms=hold_ms)

    def _give_back(self, who: Actor, given: Arguments) -> None:
        who.give_back(
            given.words[0],
            group=given.need("group"),
            level=given.number_or("level", 0),
            times_max=given.number("max"),
        )

    def _commit_offset(self, who: Actor, given: Arguments) -> None:
        who.commit(_queue(given), given.number_at(1, "an offset"), group=given.need("group"))


def _queue(given: Arguments) -> Queue:
    return Queue.of(given.word(0, "a queue, as in T/0,"))
