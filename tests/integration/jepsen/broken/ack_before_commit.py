"""Entries count as committed as soon as one member has them: acknowledgements come before a majority is safe.

A leader that hears nobody still steps down: `replication` has taken the true rule for that before.
"""

from dledger.raft import quorum, replication

assert vars(replication)["reached_by_majority"] is not max
quorum.reached_by_majority = max  # type: ignore[assignment]
