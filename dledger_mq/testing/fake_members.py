"""The clients of a group in memory that live: those with a connection on which they have sent a heartbeat.

A client has a connection with each node, and is a member while it has one of them. It must not know what is sent there.
"""

from __future__ import annotations

from dledger_mq.net.connection import Connection


class FakeMembers:
    """The members of all consumer groups, or of all producer groups."""

    def __init__(self) -> None:
        """Start without members."""
        self._groups: dict[str, dict[str, dict[Connection, None]]] = {}

    def beat(self, group: str, client_id: str, connection: Connection) -> bool:
        """Take in a client's heartbeat; return True if it is a new member."""
        members = self._groups.setdefault(group, {})
        is_new = client_id not in members
        members.setdefault(client_id, {})[connection] = None
        return is_new

    def leave(self, group: str, client_id: str) -> bool:
        """Forget a member; return False if it was none."""
        return self._groups.get(group, {}).pop(client_id, None) is not None

    def connection_ended(self, connection: Connection) -> list[str]:
        """Forget the members that have no connection without this one; return the groups that lost one."""
        changed = []
        for group, members in self._groups.items():
            for client_id in [one for one, has in members.items() if connection in has]:
                del members[client_id][connection]
                if not members[client_id]:
                    del members[client_id]
                    changed.append(group)
        return changed

    def ids(self, group: str) -> list[str]:
        """Return the client ids of the members, in order."""
        return sorted(self._groups.get(group, {}))

    def connections(self, group: str) -> list[Connection]:
        """Return a connection of each member, the one that it had first."""
        return [next(iter(has)) for has in self._groups.get(group, {}).values()]

    def connection(self, client_id: str) -> Connection | None:
        """Return a connection of a client, whatever its group; None: it is no member."""
        found = (members[client_id] for members in self._groups.values() if client_id in members)
        return next((next(iter(has)) for has in found), None)
