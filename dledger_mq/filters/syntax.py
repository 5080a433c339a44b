"""How the text of a filter becomes one operand: lark finds its parts, each of which is made of those within it.

A mistake in what a text means is found where it stands, as one in its form is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, cast

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken
from lark.tree import Meta

from dledger_mq.filters.conditions import (
    Kind,
    MisplacedError,
    Operand,
    between,
    comparison,
    conjunction,
    constant_operand,
    disjunction,
    equality,
    inequality,
    is_not_null,
    is_null,
    membership,
    name_operand,
    negation,
    negative,
    not_between,
    search,
)
from dledger_mq.filters.errors import FilterTextError
from dledger_mq.filters.grammar import GRAMMAR
from dledger_mq.filters.readings import LONG_MAX

_SHOWN_MAX: Final = 24

_EXPECTED: Final[Mapping[str, str]] = {
    "NAME": "a name",
    "TEXT": "a text in single quotes",
    "INTEGER": "a number",
    "FLOAT": "a number",
    "EQUAL": "=",
    "UNEQUAL": "<>",
    "ORDER": "< <= > >=",
    "MINUS": "-",
    "PLUS": "+",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "$END": "the end",
}
"""Words for what might have stood at a place, by lark's names; keywords are their own."""

_HINTS: Final[Mapping[str, str]] = {
    '"': "texts stand in single quotes",
    "'": "this text has no end",
    "!": "write <> for unequal",
    "LIKE": "there is no LIKE; CONTAINS, STARTSWITH and ENDSWITH take a text",
    "=": "equality is one =",
    "+": "there is no arithmetic",
    "-": "there is no arithmetic",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic",
    "%": "there is no arithmetic",
    "NULL": "NULL stands behind IS and IS NOT only",
}

_Part = Operand | Token


class FilterReader:
    """The reading of one text.

    Attributes:
        names: that were met, and where the value of each stands.
        looks: see `PropertyFilter`.
    """

    def __init__(self, *, terms_max: int, depth_max: int) -> None:
        """Set the bounds.

        Args:
            terms_max: names and constants that the text may have.
            depth_max: how deep its parts may be nested.
        """
        self.names: dict[str, int] = {}
        self.looks = 0
        self._terms = 0
        self._terms_max = terms_max
        self._depth_max = depth_max

    def read(self, text: str) -> Operand:
        """Return the operand that the text is.

        Raises:
            FilterTextError: it is none.
        """
        made: dict[int, Operand] = {}
        tree = _parse(text)
        for part in tree.iter_subtrees():  # those within first
            parts = [made[id(each)] if isinstance(each, Tree) else each for each in part.children]
            made[id(part)] = self._make(part.data, parts, part.meta)
        return made[id(tree)]

    def _make(self, rule: str, parts: Sequence[_Part], place: Meta) -> Operand:
        """Return the operand of one part of the text.

        Raises:
            FilterTextError: it cannot be used.
        """
        operands = [each for each in parts if isinstance(each, Operand)]
        tokens = [each for each in parts if isinstance(each, Token)]
        self._terms += sum(each.type in _TERMS for each in tokens)
        if self._terms > self._terms_max:
            why = f"more than {self._terms_max} names and constants"
            raise FilterTextError(why, place.line, place.column)
        self.looks += rule in _LOOKS
        if rule == "name":
            return self._name(tokens[0])
        try:
            found = _MAKERS[rule](operands, tokens)
        except MisplacedError as error:
            raise FilterTextError(str(error), place.line, place.column) from None
        if found.depth > self._depth_max:
            why = f"nested more than {self._depth_max} deep"
            raise FilterTextError(why, place.line, place.column)
        return found

    def _name(self, token: Token) -> Operand:
        return name_operand(self.names.setdefault(str(token), len(self.names)), str(token))


_TERMS: Final = frozenset({"NAME", "TEXT", "INTEGER", "FLOAT", "TRUE", "FALSE"})
_LOOKS: Final = frozenset({"name", "text", "integer", "float", "true", "false", "search"})


def _parse(text: str) -> Tree[Token]:
    """Return the parts of a text.

    Raises:
        FilterTextError: its form is wrong.
    """
    try:
        return _parser().parse(text)
    except UnexpectedCharacters as error:
        at = cast("int", error.pos_in_stream)  # lark declares its default only
        line, column = error.line, error.column
        said, hint = f"unexpected {text[at : at + _SHOWN_MAX]!r}", _HINTS.get(text[at], "")
    except UnexpectedToken as error:
        line, column = error.line, error.column
        said, hint = _unexpected(error)
    raise FilterTextError(f"{said}: {hint}" if hint else said, line, column)


def _unexpected(error: UnexpectedToken) -> tuple[str, str]:
    """Return what is wrong with a token, and a hint."""
    token = error.token
    names = sorted({_EXPECTED.get(each, each) for each in error.accepts or error.expected})
    expected = "expected " + (names[0] if len(names) == 1 else "one of: " + ", ".join(names))
    if token.type == "$END":
        return "the text ends too soon", expected
    return f"unexpected {str(token)[:_SHOWN_MAX]!r}", _HINTS.get(token.upper(), expected)


@cache
def _parser() -> Lark:
    """Return the parser, which is made when it is first needed."""
    return Lark(
        GRAMMAR,
        start="filter",
        parser="lalr",
        lexer="basic",  # a keyword is one wherever it stands
        propagate_positions=True,
        maybe_placeholders=False,
        g_regex_flags=re.ASCII,
    )


# Parts of the text, by rule.


def _text(token: Token) -> bytes:
    """Return what stands between the quotes; a half of a pair of surrogates becomes a question mark."""
    return token[1:-1].replace("''", "'").encode(errors="replace")


def _integer(token: Token) -> Operand:
    number = int(token.rstrip("lL"))
    if number > LONG_MAX:
        raise MisplacedError(f"{token[:_SHOWN_MAX]} is beyond 64 bits")
    return constant_operand(Kind.NUMBER, number, str(token))


def _float(token: Token) -> Operand:
    number = float(token)
    if math.isinf(number):
        raise MisplacedError(f"{token[:_SHOWN_MAX]} is too great for a float")
    if not number:
        raise MisplacedError(f"{token[:_SHOWN_MAX]} is no float that can be written; write 0")
    return constant_operand(Kind.NUMBER, number, str(token))


def _has_no_not(tokens: Sequence[Token]) -> bool:
    return all(each.type != "NOT" for each in tokens)


def _membership(operands: Sequence[Operand], tokens: Sequence[Token]) -> Operand:
    texts = [_text(each) for each in tokens if each.type == "TEXT"]
    return membership(operands[0], texts, is_wanted=_has_no_not(tokens))


def _search(operands: Sequence[Operand], tokens: Sequence[Token]) -> Operand:
    word, text = tokens[-2:]
    return search(operands[0], word.type, _text(text), is_wanted=_has_no_not(tokens))


def _nested(operands: Sequence[Operand], _tokens: object) -> Operand:
    return operands[0]._replace(depth=operands[0].depth + 1)


_Maker = Callable[[Sequence[Operand], Sequence[Token]], Operand]

_MAKERS: Final[Mapping[str, _Maker]] = {
    "disjunction": lambda operands, _: disjunction(operands),
    "conjunction": lambda operands, _: conjunction(operands),
    "equality": lambda operands, _: equality(*operands),
    "inequality": lambda operands, _: inequality(*operands),
    "is_null": lambda operands, _: is_null(*operands),
    "is_not_null": lambda operands, _: is_not_null(*operands),
    "comparison": lambda operands, tokens: comparison(operands[0], tokens[0], operands[1]),
    "between": lambda operands, _: between(*operands),
    "not_between": lambda operands, _: not_between(*operands),
    "membership": _membership,
    "search": _search,
    "negation": lambda operands, _: negation(*operands),
    "negative": lambda operands, _: negative(*operands),
    "nested": _nested,
    "text": lambda _, tokens: constant_operand(Kind.TEXT, _text(tokens[0]), tokens[0]),
    "integer": lambda _, tokens: _integer(tokens[0]),
    "float": lambda _, tokens: _float(tokens[0]),
    "true": lambda _, __: constant_operand(Kind.BOOLEAN, True, "TRUE"),
    "false": lambda _, __: constant_operand(Kind.BOOLEAN, False, "FALSE"),
}
