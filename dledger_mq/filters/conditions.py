"""Operands and conditions as functions of a message's values, and what may stand beside what (H6, H12, H17 to H19).

A condition is true, false or unknown, which is None (H13). The values are those of the names that the filter asks for,
in the order of `PropertyFilter.marks`. Nothing here knows how a text is read into these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, cast

from dledger_mq.filters import layout
from dledger_mq.filters.readings import Value, are_equal, numbers, reading_beside

Values = Sequence["bytes | None"]
"""Of the properties that a filter asks for; None: the message has none of that name."""

Evaluate = Callable[[Values], Value]
Condition = Callable[[Values], "bool | None"]


class Kind(Enum):
    """The kinds of operands."""

    NAME = auto()
    TEXT = auto()
    NUMBER = auto()
    BOOLEAN = auto()
    CONDITION = auto()


class Operand(NamedTuple):
    """A part of a filter.

    Attributes:
        kind: what it is.
        evaluate: gives its value for a message. Raises UnreadableError.
        shown: as it stands in the text, or a word for it; for errors.
        depth: of what is nested in it; 1 for a name or a constant.
        constant: its value, if that is the same for all messages.
        name: where its value stands among the values, for a name.
        layout: of a condition, as far as it can be laid out.
    """

    kind: Kind
    evaluate: Evaluate
    shown: str
    depth: int = 1
    constant: Value = None
    name: int = -1
    layout: bytes = layout.NOT_LAID_OUT


class MisplacedError(ValueError):
    """Raised when an operand stands where none of its kind may. Its text says why."""


COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def name_operand(index: int, shown: str) -> Operand:
    """Return what stands for a property."""
    return Operand(Kind.NAME, operator.itemgetter(index), shown, name=index)


def constant_operand(kind: Kind, value: Value, shown: str) -> Operand:
    """Return what stands for a constant."""
    return Operand(kind, lambda _values: value, shown, constant=value)


def negative(operand: Operand) -> Operand:
    """Put a minus before a number."""
    value = operand.constant
    if operand.kind is not Kind.NUMBER or not isinstance(value, (int, float)):
        raise MisplacedError(f"a minus stands before numbers only, not before {operand.shown}")
    return constant_operand(Kind.NUMBER, -value, f"-{operand.shown}")


def as_condition(operand: Operand) -> Condition:
    """Return an operand as a condition; a name by itself is false, or unknown (H18)."""
    evaluate = operand.evaluate
    match operand.kind:
        case Kind.CONDITION | Kind.BOOLEAN:
            return cast("Condition", evaluate)  # by its kind it gives nothing else
        case Kind.NAME:
            return lambda values: None if evaluate(values) is None else False
        case Kind.TEXT | Kind.NUMBER:
            raise MisplacedError(f"{operand.shown} is no condition: compare it with something")


def as_layout(operand: Operand) -> bytes:
    """Return what `as_condition` does as it is laid out."""
    if operand.kind is Kind.NAME:
        return layout.lone_name(operand.name)
    if operand.kind is Kind.BOOLEAN:
        return layout.constant(is_true=bool(operand.constant))
    return operand.layout


def condition(
    evaluate: Condition, *parts: Operand, laid_out: bytes = layout.NOT_LAID_OUT
) -> Operand:
    """Return a condition as an operand that is made of others."""
    depth = 1 + max(part.depth for part in parts)
    return Operand(Kind.CONDITION, evaluate, "a condition", depth, layout=laid_out)


def negation(operand: Operand) -> Operand:
    """Return NOT of an operand; of unknown it is unknown."""
    laid_out = layout.opposite(as_layout(operand))
    return condition(_opposite(as_condition(operand)), operand, laid_out=laid_out)


def _opposite(judge: Condition) -> Condition:
    def evaluate(values: Values) -> bool | None:
        verdict = judge(values)
        return None if verdict is None else not verdict

    return evaluate


def conjunction(operands: Sequence[Operand]) -> Operand:
    """Return AND of operands: false if one is, else unknown if one is."""
    parts = tuple(map(as_condition, operands))

    def evaluate(values: Values) -> bool | None:
        verdict: bool | None = True
        for part in parts:
            found = part(values)
            if found is False:
                return False
            if found is None:
                verdict = None
        return verdict

    return condition(evaluate, *operands, laid_out=layout.every([*map(as_layout, operands)]))


def disjunction(operands: Sequence[Operand]) -> Operand:
    """Return OR of operands: true if one is, else unknown if one is."""
    parts = tuple(map(as_condition, operands))

    def evaluate(values: Values) -> bool | None:
        verdict: bool | None = False
        for part in parts:
            found = part(values)
            if found:
                return True
            if found is None:
                verdict = None
        return verdict

    return condition(evaluate, *operands, laid_out=layout.one_of([*map(as_layout, operands)]))


def is_null(operand: Operand) -> Operand:
    """Return IS NULL, which is never unknown (H15)."""
    evaluate = operand.evaluate
    laid_out = _nullness(operand)
    return condition(lambda values: evaluate(values) is None, operand, laid_out=laid_out)


def is_not_null(operand: Operand) -> Operand:
    """Return IS NOT NULL, which is never unknown."""
    evaluate = operand.evaluate
    laid_out = layout.opposite(_nullness(operand))
    return condition(lambda values: evaluate(values) is not None, operand, laid_out=laid_out)


def _nullness(operand: Operand) -> bytes:
    return layout.has_no_value(operand.name) if operand.kind is Kind.NAME else layout.NOT_LAID_OUT


def equality(left: Operand, right: Operand) -> Operand:
    """Return `=`."""
    return condition(_equality(left, right), left, right, laid_out=_equality_layout(left, right))


def inequality(left: Operand, right: Operand) -> Operand:
    """Return `<>`, which is NOT of `=`."""
    laid_out = layout.opposite(_equality_layout(left, right))
    return condition(_opposite(_equality(left, right)), left, right, laid_out=laid_out)


def _equality_layout(left: Operand, right: Operand) -> bytes:
    """Return how `_name_equals` is laid out; the other way round null is unequal, and not unknown."""
    if left.kind is not Kind.NAME or right.constant is None:
        return layout.NOT_LAID_OUT
    if isinstance(right.constant, bytes):
        return layout.is_text(left.name, right.constant)
    return layout.is_number(left.name, "=", right.constant)


def _equality(left: Operand, right: Operand) -> Condition:
    if left.kind is Kind.BOOLEAN and right.kind in (Kind.TEXT, Kind.NUMBER):
        raise MisplacedError(f"{left.shown} cannot be compared with {right.shown}")
    if left.kind is Kind.NAME and right.constant is not None:
        return _name_equals(left.name, right.constant)
    first, second = left.evaluate, right.evaluate
    return lambda values: are_equal(first(values), second(values))


def _name_equals(name: int, constant: bytes | float) -> Condition:
    """Return the condition that a name's value is a constant; beside a number it is read as one."""
    if isinstance(constant, bytes):

        def is_text(values: Values) -> bool | None:
            value = values[name]
            return None if value is None else value == constant

        return is_text
    read, number = reading_beside(constant), constant

    def is_number(values: Values) -> bool | None:
        value = values[name]
        return None if value is None else read(value) == number

    return is_number


def comparison(left: Operand, symbol: str, right: Operand) -> Operand:
    """Return `<`, `<=`, `>` or `>=`."""
    for operand in (left, right):
        if operand.kind not in (Kind.NAME, Kind.NUMBER):
            raise MisplacedError(
                f"{operand.shown} has no order: <, <=, >, >= and BETWEEN compare names and numbers"
            )
    if left.kind is Kind.NAME and isinstance(right.constant, (int, float)):
        compared = _name_compared(left.name, symbol, right.constant)
        laid_out = layout.is_number(left.name, symbol, right.constant)
        return condition(compared, left, right, laid_out=laid_out)
    if right.kind is Kind.NAME and isinstance(left.constant, (int, float)):
        mirrored = _MIRRORED[symbol]
        compared = _name_compared(right.name, mirrored, left.constant)
        laid_out = layout.is_number(right.name, mirrored, left.constant)
        return condition(compared, left, right, laid_out=laid_out)
    compare, first, second = COMPARISONS[symbol], left.evaluate, right.evaluate

    def evaluate(values: Values) -> bool | None:
        lower, upper = first(values), second(values)
        if lower is None or upper is None:
            return None
        return compare(*numbers(lower, upper))

    return condition(evaluate, left, right)


def _name_compared(name: int, symbol: str, bound: float) -> Condition:
    compare, read = COMPARISONS[symbol], reading_beside(bound)

    def evaluate(values: Values) -> bool | None:
        value = values[name]
        return None if value is None else compare(read(value), bound)

    return evaluate


def between(value: Operand, low: Operand, high: Operand) -> Operand:
    """Return BETWEEN: `value >= low AND value <= high` (H16)."""
    _check_bounds(low, high)
    return conjunction((comparison(value, ">=", low), comparison(value, "<=", high)))


def not_between(value: Operand, low: Operand, high: Operand) -> Operand:
    """Return NOT BETWEEN: `value < low OR value > high`."""
    _check_bounds(low, high)
    return disjunction((comparison(value, "<", low), comparison(value, ">", high)))


def _check_bounds(low: Operand, high: Operand) -> None:
    least, most = low.constant, high.constant
    if isinstance(least, (int, float)) and isinstance(most, (int, float)) and least > most:
        raise MisplacedError(
            f"BETWEEN {low.shown} AND {high.shown}: the first must not be the greater"
        )


def membership(operand: Operand, texts: Sequence[bytes], *, is_wanted: bool) -> Operand:
    """Return IN, or NOT IN; of null it is unknown (H17)."""
    if operand.kind is not Kind.NAME:
        raise MisplacedError(f"IN stands behind a name, not behind {operand.shown}")
    name, among = operand.name, frozenset(texts)

    def evaluate(values: Values) -> bool | None:
        value = values[name]
        return None if value is None else (value in among) is is_wanted

    laid_out = layout.is_among(name, texts)
    if not is_wanted:
        laid_out = layout.opposite(laid_out)
    return condition(evaluate, operand, laid_out=laid_out)


SEARCHES: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}


def search(operand: Operand, word: str, text: bytes, *, is_wanted: bool) -> Operand:
    """Return CONTAINS, STARTSWITH or ENDSWITH; of null, or for an empty text, it is false, also with NOT (H19)."""
    if operand.kind not in (Kind.NAME, Kind.TEXT):
        raise MisplacedError(f"{word} stands behind a name or a text, not behind {operand.shown}")
    read, look = operand.evaluate, SEARCHES[word]

    def evaluate(values: Values) -> bool | None:
        value = read(values)
        if not isinstance(value, bytes) or not text:
            return False
        return look(value, text) is is_wanted

    return condition(evaluate, operand)
