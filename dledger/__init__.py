"""A Raft-replicated commit log."""
