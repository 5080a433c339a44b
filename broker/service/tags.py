"""Tag expressions (rules G): the tag hashes that a consumer wants. The broker compares hashes only (G4). Pure.

It must not know messages: the clients compare the tags themselves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dledger_mq.message.hashes import tags_code

EVERYTHING = "*"

KEPT_CHARACTERS_MAX: Final = 1024
"""Of an expression whose hashes are remembered; longer ones, of which a client may send a new one with each pull, take
more than ten times as much memory as they have characters."""


EXPRESSION_CHARACTERS_MAX: Final = 65_536
"""Of any expression: eight thousand tags of eight letters. Each costs a microsecond with each pull, and memory for as
long as that is held."""


class TagExpressionError(ValueError):
    """The expression names no tag, or is too long."""


def tag_hashes(expression: str) -> frozenset[int] | None:
    """Return the hashes of the tags that pass, None for all (G1).

    Raises:
        TagExpressionError: nothing is left between the `||`, or it is too long.
    """
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise TagExpressionError(
            f"the expression has {len(expression)} characters, at most {EXPRESSION_CHARACTERS_MAX}"
        )
    read = _kept_hashes if len(expression) <= KEPT_CHARACTERS_MAX else _read
    return read(expression)


def _read(expression: str) -> frozenset[int] | None:
    """Do what `tag_hashes` does, without a look at what was asked before."""
    if expression in ("", EVERYTHING):
        return None
    tags = [part.strip() for part in expression.split("||")]
    wanted = [tag for tag in tags if tag]
    if not wanted:
        raise TagExpressionError(f"the expression {expression[:80]!r} names no tag")
    if EVERYTHING in wanted:
        return None
    return frozenset(tags_code(tag) for tag in wanted)


_kept_hashes: Final = lru_cache(maxsize=4096)(_read)
