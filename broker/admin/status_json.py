"""The health of groups as JSON for scripts: the names are an interface. What is not known is null, or not there."""

from __future__ import annotations

from broker.admin.health import ClusterHealth, GroupHealth, MemberHealth


def health_json(health: ClusterHealth) -> dict[str, object]:
    """Return the health as scripts read it; what is not known is null."""
    return {
        "led": health.is_led,
        "whole": health.is_whole,
        "name_servers": [
            {"address": address, "problem": problem}
            for address, problem in health.name_servers.items()
        ],
        "groups": [_group_json(group) for group in health.groups],
    }


def _group_json(group: GroupHealth) -> dict[str, object]:
    """Return a group; term, time and index are its leader's."""
    facts = group.leader.facts if group.leader is not None else None
    return {
        "name": group.name,
        "led": group.is_led,
        "whole": group.is_whole,
        "leader": facts.node_id if facts is not None else None,
        "term": facts.term if facts is not None else None,
        "leads_ms": facts.role_ms if facts is not None else None,
        "commit_index": facts.commit_index if facts is not None else None,
        "members": [_member_json(member) for member in group.members],
    }


def _member_json(member: MemberHealth) -> dict[str, object]:
    """Return a member; of one that has not answered, only what others know."""
    row: dict[str, object] = {
        "id": member.node_id or None,
        "address": member.address or None,
        "state": member.state.value,
        "reason": member.reason,
        "lag_entries": member.lag_entries,
        "lag_bytes": member.lag_bytes,
    }
    facts = member.facts
    if facts is not None:
        row |= {
            "term": facts.term,
            "commit_index": facts.commit_index,
            "applied_index": facts.applied_index,
            "log_bytes": facts.log_bytes,
            "free_bytes": facts.free_bytes,
            "clients": facts.clients,
            "role_ms": facts.role_ms,
            "up_ms": facts.up_ms,
            "version": facts.version or None,
            "stopping": facts.stopping,
            "troubles": list(facts.troubles),
        }
    return row
