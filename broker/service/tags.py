"""Tag expressions (rules G): the tag hashes that a consumer wants. The broker compares hashes only (G4). Pure.

It must not know messages: the clients compare the tags themselves.
"""

from __future__ import annotations

from functools import lru_cache

from dledger_mq.message.hashes import tags_code

EVERYTHING = "*"


class TagExpressionError(ValueError):
    """The expression names no tag."""


@lru_cache(maxsize=4096)
def tag_hashes(expression: str) -> frozenset[int] | None:
    """Return the hashes of the tags that pass, None for all (G1).

    Raises:
        TagExpressionError: nothing is left between the `||`.
    """
    if expression in ("", EVERYTHING):
        return None
    tags = [part.strip() for part in expression.split("||")]
    wanted = [tag for tag in tags if tag]
    if not wanted:
        raise TagExpressionError(f"the expression {expression[:80]!r} names no tag")
    if EVERYTHING in wanted:
        return None
    return frozenset(tags_code(tag) for tag in wanted)
