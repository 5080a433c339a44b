"""Fields of ours in searches for messages (12, 33) and their answers; clients of RocketMQ do not know them."""

from __future__ import annotations

from typing import Final

BEFORE_FIELD: Final = "dledgerBefore"
"""Of QUERY_MESSAGE: only messages before this place of the log, which is that of the oldest one found before."""

ANSWERED_BY_FIELD: Final = "dledgerMember"
"""Of answers: the id of the member that has answered."""

LEADS_FIELD: Final = "dledgerLeads"
"""Of answers, `true` or `false`: whether it leads; else the answer is of what it has applied."""

BEHIND_FIELD: Final = "dledgerBehind"
"""Of answers: entries that it knows to be committed and has not applied yet."""
