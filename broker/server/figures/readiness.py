"""The readiness of a member of a group, and why it is not ready: who leads, what lags. It must not know who asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.metrics.endpoint import Readiness
from broker.server.figures.observed import Observed
from dledger import Role, Statistics

LAG_ENTRIES_MAX: Final = 1000
"""A follower that has more to apply than this gives old answers."""

DISK_FULL: Final = "full"


def readiness_of(observed: Observed) -> Readiness:
    """Return whether a member is ready, and what it knows of the group."""
    now = observed.log.status.statistics()
    return Readiness(tuple(_causes(observed, now)), _facts(observed, now))


def _causes(observed: Observed, now: Statistics) -> Iterator[str]:
    """Yield why a member is not ready."""
    log = observed.log
    own = log.status.attributes(log.node_id)
    stop_stage = observed.stop_stage()
    if stop_stage:
        yield f"it stops: {stop_stage}"
    if not observed.is_open:
        yield f"its log is being opened{': ' + own['repair'] if own.get('repair') else ''}"
        return
    if not log.is_accepted:
        yield f"it is no member: {own.get('membership') or 'not added yet'}"
    if now.leader_id is None:
        why = own.get("majority") or "an election, or no majority of the members is reached"
        yield f"no leader is known in term {now.term}: {why}"
    elif now.role is Role.LEADER and not now.is_serving:
        yield f"it leads term {now.term}, and has not applied the first entry of it"
    behind = now.commit_index - now.applied_index
    if behind > LAG_ENTRIES_MAX:
        yield f"it has {behind} committed entries to apply"
    if now.disk_trouble.startswith(DISK_FULL):
        yield f"its disk is {now.disk_trouble}"
    refused_because = observed.services.sends.refused_because
    if now.is_serving and refused_because:
        yield f"sends are refused: {refused_because}"


def _facts(observed: Observed, now: Statistics) -> dict[str, object]:
    """Return what a member knows of its group and of itself."""
    config = observed.config()
    return {
        "group": config.group,
        "broker": config.broker_name,
        "node": now.node_id,
        "role": now.role.value,
        "term": now.term,
        "leader": now.leader_id or "",
        "serving": now.is_serving,
        "commitIndex": now.commit_index,
        "appliedIndex": now.applied_index,
        "connected": list(now.peers_connected),
        "lagEntries": {
            name: max(0, now.last_index - index) for name, index in now.match_indexes.items()
        },
        "diskTrouble": now.disk_trouble,
    }
