"""The mangling of one direction of a connection by a proxy: bytes are cut into frames, and treated. Pure.

Members and clients both speak frames with a 4-byte length in front that does not count itself
(docs/formats/rpc.md and remoting.md, "Frame"), so one cutter serves both.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from itertools import islice

from jepsen.systems.api import Shape

FRAME_BYTES_MAX = 32 * 1024 * 1024
"""A larger length is no frame of ours; the connection's bytes are then passed on as they come."""

LENGTH_BYTES = 4
KEPT_OLDEST = 64
KEPT_NEWEST = 192
KEPT_FRAME_BYTES_MAX = 16 * 1024


class FrameCutter:
    """Cuts a stream into whole frames; bytes of an unfinished one are kept back until it is whole."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._need = LENGTH_BYTES
        self.is_opaque = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that are now whole, length in front; arbitrary pieces of what is none."""
        if self.is_opaque:
            return [data] if data else []
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        frames: list[bytes] = []
        at = 0
        self._need = LENGTH_BYTES
        while len(data) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            if end - at > FRAME_BYTES_MAX:
                self.is_opaque = True
                frames.append(data[at:])
                return frames
            if end > len(data):
                self._need = end - at
                break
            frames.append(data[at:end])
            at = end
        self._rest += data[at:]
        return frames

    def take_rest(self) -> bytes:
        """Return the bytes of an unfinished frame, for the end of a stream."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


class Mangler:
    """Loses, doubles, swaps and corrupts frames of one direction of a connection."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._held: bytes | None = None

    def treat(self, frames: Iterable[bytes], shape: Shape) -> list[bytes]:
        """Return the frames to pass on, in order. A held-back frame follows the next one that passes."""
        passed: list[bytes] = []
        for frame in frames:
            if self._draws(shape.lose):
                continue
            if self._held is None and self._draws(shape.reorder):
                self._held = frame
                continue
            whole = flip_bit(frame, self._chance) if self._draws(shape.corrupt) else frame
            passed.append(whole)
            if self._draws(shape.duplicate):
                passed.append(whole)
            passed += self.release()
        return passed

    def release(self) -> list[bytes]:
        """Return the frame that was held back, if one was."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def _draws(self, share: float) -> bool:
        return share > 0 and self._chance.random() < share


def flip_bit(frame: bytes, chance: random.Random) -> bytes:
    """Flip one bit after the length field, so that the receiver finds the frame's end and its fault."""
    if len(frame) <= LENGTH_BYTES:
        return frame
    damaged = bytearray(frame)
    damaged[chance.randrange(LENGTH_BYTES, len(frame))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


class Recorder:
    """Keeps frames of a link for replay: the first ones of the run, and the newest."""

    def __init__(self) -> None:
        self._oldest: list[bytes] = []
        self._newest: deque[bytes] = deque(maxlen=KEPT_NEWEST)

    def note(self, frames: Iterable[bytes]) -> None:
        """Remember frames, unless they are large."""
        for frame in frames:
            if len(frame) > KEPT_FRAME_BYTES_MAX:
                continue
            if len(self._oldest) < KEPT_OLDEST:
                self._oldest.append(frame)
            else:
                self._newest.append(frame)

    def old_frames(self, count: int, chance: random.Random) -> list[bytes]:
        """Return up to `count` frames, half of them among the first; in the order in which they went."""
        early = sorted(chance.sample(range(len(self._oldest)), min(len(self._oldest), count // 2)))
        late = islice(self._newest, 0, count - len(early))
        return [self._oldest[at] for at in early] + list(late)
