"""Sequential models of a register, a text and a list, for the linearizability checker. Pure.

A model is a state that can be hashed, and a step: given the state, an operation's argument and its result, the state
after it, or None when an operation with that result cannot come here. Operations of unknown outcome have no result;
their step says what they do if they take effect, and None when they would do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

S = TypeVar("S", bound=Hashable)
"""The state of an object."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on one object.

    Attributes:
        f: what is done.
        argument: with what.
        result: what came of it; None also for an operation that returns nothing.
        is_known: whether it was seen to succeed; else it may take effect at any time after its invocation, or never.
        index: of its invocation in the history.
    """

    f: str
    argument: object
    result: object
    is_known: bool
    index: int


@dataclass(frozen=True, slots=True)
class Model(Generic[S]):
    """The behaviour of an object, as a state and its steps.

    Attributes:
        name: of the object.
        initial: its first state.
        step: the state after a call, or None.
        is_read: whether a known call changes no state whatever, in no place of an order.
        needed: leaves out calls of unknown outcome that cannot matter: if the others can be put in order, all can.
    """

    name: str
    initial: S
    step: Callable[[S, Call], S | None]
    is_read: Callable[[Call], bool]
    needed: Callable[[Sequence[Call]], list[Call]]


# None is no state, so a register is a tuple of one; nothing written reads as None.


def _register_step(state: tuple[object], call: Call) -> tuple[object] | None:
    """Return the state after the call, or None if it cannot happen here; an unknown `cas` counts only as a success."""
    match call.f:
        case "read":
            return state if state[0] == call.result else None
        case "write":
            return (call.argument,)
        case "cas":
            old, new = _members(call.argument)
            if not call.is_known or call.result:
                return (new,) if state[0] == old else None
            return state if state[0] != old else None
        case _:
            raise ValueError(f"a register knows read, write and cas, not {call.f!r}")


def _register_needed(calls: Sequence[Call]) -> list[Call]:
    """Return the calls that matter: an unknown write of a value that nobody saw could as well come last."""
    known = [call for call in calls if call.is_known]
    if any(call.f == "cas" and not call.result for call in known):
        return _without_unknown_reads(calls)
    seen = [call.result for call in known if call.f == "read"]
    seen += [_members(call.argument)[0] for call in calls if call.f == "cas"]
    return [
        call
        for call in _without_unknown_reads(calls)
        if call.is_known or call.f != "write" or call.argument in seen
    ]


def _text_step(state: str, call: Call) -> str | None:
    match call.f:
        case "get":
            return state if state == call.result else None
        case "put":
            return str(call.argument)
        case "append":
            return state + str(call.argument)
        case _:
            raise ValueError(f"a text knows get, put and append, not {call.f!r}")


def _list_step(state: tuple[object, ...], call: Call) -> tuple[object, ...] | None:
    match call.f:
        case "read":
            return state if list(state) == list(_members(call.result)) else None
        case "append":
            return (*state, call.argument)
        case _:
            raise ValueError(f"a list knows read and append, not {call.f!r}")


def _list_needed(calls: Sequence[Call]) -> list[Call]:
    """Return the calls that matter: an element of unknown outcome that no read holds could as well come last."""
    seen = {
        element
        for call in calls
        if call.is_known and call.f == "read"
        for element in _members(call.result)
    }
    return [
        call for call in _without_unknown_reads(calls) if call.is_known or call.argument in seen
    ]


def _members(value: object) -> Sequence[object]:
    assert isinstance(value, list | tuple), f"{value!r} is no list: no model has such a call"
    return value


def _offset(call: Call) -> int:
    offset = _members(call.argument)[0]
    assert isinstance(offset, int), f"call {call.index} commits {offset!r}, which is no offset"
    return offset


def _without_unknown_reads(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if call.is_known or call.f not in ("read", "get")]


def _is_read(call: Call) -> bool:
    return call.f in ("read", "get") or (call.f == "cas" and not call.result)


def _max_register_step(state: int, call: Call) -> int | None:
    match call.f:
        case "read":
            return state if state == call.result else None
        case "commit":
            return max(state, _offset(call))
        case _:
            raise ValueError(f"a register of the highest knows read and commit, not {call.f!r}")


def _max_register_needed(calls: Sequence[Call]) -> list[Call]:
    """Return the calls that matter: an unknown commit that nobody has read changes nothing that anybody saw."""
    seen = {call.result for call in calls if call.is_known and call.f == "read"}
    return [
        call for call in _without_unknown_reads(calls) if call.is_known or _offset(call) in seen
    ]


REGISTER: Final[Model[tuple[object]]] = Model(
    "register", (None,), _register_step, _is_read, _register_needed
)
"""read -> value; write value; cas [old, new] -> whether it was swapped."""

TEXT: Final = Model("text", "", _text_step, _is_read, _without_unknown_reads)
"""get -> text; put text; append text."""

MAX_REGISTER: Final[Model[int]] = Model(
    "register of the highest", -1, _max_register_step, _is_read, _max_register_needed
)
"""read -> the highest value, -1 for none; commit [value, node]: a lower one changes nothing."""

LIST_APPEND: Final[Model[tuple[object, ...]]] = Model(
    "list-append", (), _list_step, _is_read, _list_needed
)
"""read -> [element, ...]; append element."""
