"""One look at a cluster after the other, each with the members that the ones before have seen.

It must not know how a look is shown, nor when the next one is due.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from broker.admin.health import UNKNOWN_GROUP, ClusterHealth, KnownMembers, Sight, judge
from broker.admin.survey import look_around


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of one look.

    Attributes:
        health: of all groups.
        at_s: when that was, in seconds since 1970.
        problem: why nobody was found; empty: somebody has answered.
        remark: a line about the look itself; empty: none.
    """

    health: ClusterHealth
    at_s: float
    problem: str = ""
    remark: str = ""


class Looks:
    """Looks at the same name servers and brokers again and again.

    Args:
        name_servers: each is asked for its brokers.
        brokers: addresses that are asked whatever the name servers say.
        expected: groups that must be there.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        brokers: Sequence[str] = (),
        expected: Sequence[str] = (),
    ) -> None:
        self._name_servers = name_servers
        self._brokers = brokers
        self._expected = expected
        self._health = ClusterHealth({}, ())

    async def look(self) -> Look:
        """Look once."""
        at_s = time.time()
        known = self._health.members
        sight = await look_around(self._name_servers, self._brokers, known)
        self._health = judge(sight, known, self._expected)
        problem = _why_nobody(sight, self._health)
        return Look(self._health, at_s, problem, problem or _remark(sight, self._health.members))


def _why_nobody(sight: Sight, health: ClusterHealth) -> str:
    """Return why there is no group to show; empty: there is one."""
    seen = [group for group in health.groups if group.members]
    if sight.facts or any(group.name != UNKNOWN_GROUP for group in seen):
        return ""
    problems = dict(sight.name_servers)
    if any(not problem for problem in problems.values()):
        # That expected groups are missing is an answer.
        return "" if health.groups else "the name servers know no group"
    asked = "name server" if problems else "node"
    problems = problems or {address: each.problem for address, each in sight.answers.items()}
    return f"no {asked} answers: {'; '.join(f'{at}: {why}' for at, why in problems.items())}"


def _remark(sight: Sight, known: KnownMembers) -> str:
    """Return from where the members are known, where not from the name servers that were asked; empty: from them."""
    if not sight.name_servers or sight.registered.keys() - {UNKNOWN_GROUP}:
        return ""
    is_deaf = all(sight.name_servers.values())
    what = "no name server answers" if is_deaf else "the name servers know no group"
    if not any(known.values()):
        return what
    return f"{what}: shown are the members that were known before"
