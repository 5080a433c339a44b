"""The pattern of a send's header: all of its bytes but the values that no two sends of a producer share.

The headers of one producer to one topic differ in the opaque number, the queue, the born time and the unique key, and
are alike in every other byte; decoding one says what all of them hold. Which bytes are values is found by their names,
which must stand in the header once each, so that nothing else there can be what a decoder takes for them.

Only letters as names are looked for (code 310), which is what clients send that send much.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from dledger_mq.message.properties import PAIR_SEPARATOR, UNIQ_KEY
from dledger_mq.remoting.requests import SendFields, SendRequest

_NUMBERS: Final = (
    (b"o", b'"opaque"', re.compile(rb'"opaque":(\d+)[,}]')),
    (b"q", b'"e"', re.compile(rb'"e":"(\d+)"')),
    (b"b", b'"g"', re.compile(rb'"g":"(\d+)"')),
)
"""Of each number the letter in the order of values, its name in the header, and the place of its digits."""

_KEY: Final = re.compile(rb'UNIQ_KEY\\u0001([^"\\]+)\\u0002')
_KEY_MARK: Final = UNIQ_KEY + b"\x01"
_SEPARATORS: Final = re.compile(rb"\\u000[12]")
"""Of properties, as JSON escapes them. With any other escape a name could be hidden."""


class SendPattern(NamedTuple):
    """A header without its values.

    Attributes:
        segments: the bytes before, between and after the values.
        order: which value stands where: o for the opaque number, q for the queue, b for the born time, k for the key.
        before, rest: the properties before the name of the unique key, and behind its value.
        fields: of the header that it was made of; but for these values, they are those of all.
    """

    segments: tuple[bytes, ...]
    order: bytes
    before: bytes
    rest: bytes
    fields: SendFields

    @classmethod
    def of(cls, header: bytes, request: SendRequest) -> Self | None:
        """Make a pattern of a header and what was decoded from it; None: it has none of these names, or one twice."""
        if type(request) is not SendRequest or header.count(UNIQ_KEY) != 1:
            return None
        found = [(_KEY.search(header), b"k")]
        for letter, name, place in _NUMBERS:
            if header.count(name) != 1:
                return None
            found.append((place.search(header), letter))
        segments, order, at = list[bytes](), b"", 0
        spans = [(match.span(1), letter) for match, letter in found if match is not None]
        if len(spans) != len(found):
            return None
        for (start, end), letter in sorted(spans):
            segments.append(header[at:start])
            order, at = order + letter, end
        segments.append(header[at:])
        if any(b"\\" in _SEPARATORS.sub(b"", segment) for segment in segments):
            return None
        before, _, text = (request.fields.properties or "").encode().partition(_KEY_MARK)
        _, separator, rest = text.partition(PAIR_SEPARATOR)
        if not separator or (before and not before.endswith(PAIR_SEPARATOR)):
            return None
        return cls(tuple(segments), order, before, rest, request.fields)
