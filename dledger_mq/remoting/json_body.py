"""JSON as fastjson writes it: legal JSON, plus maps whose keys are numbers or objects.

`{0:"a:1"}` and `{{"brokerName":"b","queueId":0,"topic":"t"}:5}` are no JSON, but Java clients and tools
write and read them. The writer emits no blank between tokens: Go cuts such text at `,` and `:` by hand.
The reader takes legal JSON and the fastjson forms, and bounds the depth before Python's stack does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.message_queue import WireQueue

DEPTH_MAX: Final = 32
"""The deepest real body (running info of a consumer) has 5 levels."""

JsonKey = str | int | WireQueue
Json = str | int | float | bool | list["Json"] | dict["JsonKey", "Json"] | None
WritableJson = object
"""The values that `write_json` takes: scalars, lists, tuples, mappings with JsonKey keys, and msgspec structs."""

_encode: Final = msgspec.json.Encoder().encode
_QUEUE_MEMBERS: Final = {"brokerName", "queueId", "topic"}


def write_json(value: WritableJson, *, quote_numbers: bool = False) -> bytes:
    """Write a body; members stand in the order of their mapping, without any blank.

    Args:
        value: mappings may have text, whole numbers or `WireQueue` as keys. None members are written.
        quote_numbers: write number keys as text, which makes it legal JSON when no key is an object.

    Raises:
        TypeError: a value or key has another type: a mistake of the caller.
    """
    pieces: list[bytes] = []
    _write(value, pieces, quote_numbers=quote_numbers)
    return b"".join(pieces)


def _write(value: WritableJson, pieces: list[bytes], *, quote_numbers: bool) -> None:
    """Append the JSON of a value; `separator` is the opening bracket until a member was written."""
    if isinstance(value, Mapping):
        separator = b"{"
        for key, member in value.items():
            pieces += (separator, _key(key, quote_numbers=quote_numbers), b":")
            _write(member, pieces, quote_numbers=quote_numbers)
            separator = b","
        pieces.append(b"{}" if separator == b"{" else b"}")
    elif isinstance(value, list | tuple):
        separator = b"["
        for member in value:
            pieces.append(separator)
            _write(member, pieces, quote_numbers=quote_numbers)
            separator = b","
        pieces.append(b"[]" if separator == b"[" else b"]")
    else:
        pieces.append(_encode(value))


def _key(key: object, *, quote_numbers: bool) -> bytes:
    if isinstance(key, str | WireQueue):
        return _encode(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return b'"%d"' % key if quote_numbers else b"%d" % key
    raise TypeError(f"a key of type {type(key).__name__} cannot be written")


def read_json(data: bytes, *, depth_max: int = DEPTH_MAX) -> Json:
    """Read a body, legal JSON or fastjson's.

    Number keys become int where they stand without quotes; object keys become `WireQueue`. In
    legal JSON all keys are text.

    Raises:
        BodyError: neither, or nested deeper than `depth_max`.
    """
    try:
        value: Json = msgspec.json.decode(data)
    except RecursionError as error:
        raise BodyError(f"body is nested deeper than {depth_max}") from error
    except (msgspec.MsgspecError, ValueError):
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise BodyError(f"body is not UTF-8: {error}") from error
        return _Reader(text, depth_max).read()
    _check_depth(value, depth_max)
    return value


def read_object(data: bytes, *, depth_max: int = DEPTH_MAX) -> dict[JsonKey, Json]:
    """Read a body that has to be an object.

    Raises:
        BodyError: as `read_json`, or it is no object.
    """
    value = read_json(data, depth_max=depth_max)
    if not isinstance(value, dict):
        raise BodyError(f"body is not a JSON object: {data[:40]!r}")
    return value


def _check_depth(value: Json, depth_max: int) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth_max):
        deeper: list[dict[JsonKey, Json] | list[Json]] = []
        for container in level:
            members = container.values() if isinstance(container, dict) else container
            deeper.extend(member for member in members if isinstance(member, dict | list))
        if not deeper:
            return
        level = deeper
    raise BodyError(f"body is nested deeper than {depth_max}")


_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None}
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_INTEGER_DIGITS_MAX: Final = 20


class _Reader:
    """Recursive descent over one text; the depth is counted, so the stack is safe."""

    def __init__(self, text: str, depth_max: int) -> None:
        self._text = text
        self._at = 0
        self._depth_left = depth_max

    def read(self) -> Json:
        value = self._value()
        self._skip_blanks()
        if self._at != len(self._text):
            raise self._error("the end")
        return value

    def _skip_blanks(self) -> str:
        """Skip blanks; return the character that follows, "" at the end."""
        match = _BLANKS.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _error(self, wanted: str) -> BodyError:
        found = self._text[self._at : self._at + 20]
        return BodyError(f"character {self._at} of the body: {wanted} expected, found {found!r}")

    def _value(self) -> Json:
        """Read any value, and leave `_at` after it, as all readers here do."""
        character = self._skip_blanks()
        if character == "{":
            return self._object()
        if character == "[":
            return self._list()
        if character == '"':
            return self._string()
        if character == "-" or character.isdigit():
            return self._number()
        match = _WORD.match(self._text, self._at)
        if match is None or match.group() not in _WORDS:
            raise self._error("a value")
        self._at = match.end()
        return _WORDS[match.group()]

    def _descend(self) -> None:
        if self._depth_left == 0:
            raise BodyError("body is nested deeper than allowed")
        self._depth_left -= 1
        self._at += 1

    def _ascend(self) -> None:
        self._depth_left += 1
        self._at += 1

    def _object(self) -> dict[JsonKey, Json]:
        """Read an object, from its brace on; a comma before the closing brace is accepted, as fastjson does."""
        self._descend()
        result: dict[JsonKey, Json] = {}
        character = self._skip_blanks()
        while character != "}":
            key = self._key(character)
            if self._skip_blanks() != ":":
                raise self._error("':'")
            self._at += 1
            result[key] = self._value()
            character = self._skip_blanks()
            if character == ",":
                self._at += 1
                character = self._skip_blanks()
            elif character != "}":
                raise self._error("',' or '}'")
        self._ascend()
        return result

    def _key(self, character: str) -> JsonKey:
        """Read a key: text, a number, a word, or an object that names a queue, which fastjson writes unquoted."""
        if character == '"':
            return self._string()
        if character == "{":
            return _queue_key(self._object())
        if character == "-" or character.isdigit():
            number = self._number()
            return number if isinstance(number, int) else str(number)
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._error("a key")
        self._at = match.end()
        return match.group()

    def _list(self) -> list[Json]:
        """Read a list, from its bracket on; a comma before the closing bracket is accepted, as fastjson does."""
        self._descend()
        result: list[Json] = []
        character = self._skip_blanks()
        while character != "]":
            result.append(self._value())
            character = self._skip_blanks()
            if character == ",":
                self._at += 1
                character = self._skip_blanks()
            elif character != "]":
                raise self._error("',' or ']'")
        self._ascend()
        return result

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise self._error("the end of a text")
        try:
            value: str = msgspec.json.decode(match.group(), type=str)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._error("a text") from error
        self._at = match.end()
        return value

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            raise self._error("a number")
        self._at = match.end()
        if match.group(1) or match.group(2):
            return float(match.group())
        if len(match.group()) > _INTEGER_DIGITS_MAX:
            raise self._error("a 64-bit number")
        return int(match.group())


def _queue_key(members: dict[JsonKey, Json]) -> WireQueue:
    """Return the queue that an object key names.

    Raises:
        BodyError: the object is not one: no other object is ever a key.
    """
    broker_name, queue_id, topic = (
        members.get(name) for name in ("brokerName", "queueId", "topic")
    )
    if (
        members.keys() <= _QUEUE_MEMBERS
        and isinstance(broker_name, str)
        and isinstance(queue_id, int)
        and isinstance(topic, str)
    ):
        return WireQueue(broker_name, queue_id, topic)
    raise BodyError(f"an object key is not a message queue: {sorted(map(str, members))}")
