"""The error of a decoder of files: where the bytes are not what they should be, and what is wrong there.

It knows no file. Who reads one turns it into a `CorruptionError` with the path; who reads from another member
turns it into a `PeerProtocolError`.
"""

from __future__ import annotations


class FormatError(ValueError):
    """The bytes of a file are malformed.

    Attributes:
        byte_offset: where, counted from the start of the given bytes.
        problem: what is wrong there.
    """

    def __init__(self, byte_offset: int, problem: str) -> None:
        self.byte_offset = byte_offset
        self.problem = problem
        super().__init__(f"byte {byte_offset}: {problem}")
