"""The body of a message as text, as JSON and as hexadecimal digits, of bounded length. Pure.

A body is whatever somebody has sent: a few bytes may inflate to gigabytes, and a text may be nested without end.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dledger_mq.message import sys_flags

SHOWN_BYTES_MAX: Final = 64 * 1024
HEX_BYTES_MAX: Final = 4 * 1024
_HEX_ROW_BYTES: Final = 16
_CHARACTER_BYTES_MAX: Final = 4
_ZLIB: Final = frozenset({sys_flags.COMPRESSION_ZLIB_LEGACY, sys_flags.COMPRESSION_ZLIB})


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body in its forms.

    Attributes:
        stored_bytes: its length as it is stored.
        note: what was done with it, or what is not shown; empty: nothing.
        text: None: it is no text.
        as_json: laid out anew; None: it is no JSON, or too long to be sure.
        as_hex: rows of bytes.
    """

    stored_bytes: int
    note: str
    text: str | None
    as_json: str | None
    as_hex: str

    def form(self, wanted: str) -> tuple[str, str]:
        """Return the name of a form, and the body in it: the one that is wanted, else the one that fits best."""
        forms = self.forms()
        name = wanted if wanted in forms else next(iter(forms))
        return name, forms[name]

    def forms(self) -> dict[str, str]:
        """Return the forms that it has, the best first."""
        forms = {"json": self.as_json, "text": self.text, "hex": self.as_hex}
        return {name: shown for name, shown in forms.items() if shown is not None}


def body_view(body: bytes, sys_flag: int) -> BodyView:
    """Return the forms of a stored body."""
    shown, note = _unpacked(body, sys_flag)
    is_cut = len(shown) > SHOWN_BYTES_MAX
    shown = shown[:SHOWN_BYTES_MAX]
    notes = [note] if note else []
    if is_cut:
        notes.append(f"only the first {SHOWN_BYTES_MAX} bytes are shown")
    if len(shown) > HEX_BYTES_MAX:
        notes.append(f"in hexadecimal digits the first {HEX_BYTES_MAX}")
    text = _text(shown, is_cut=is_cut)
    as_json = None if text is None or is_cut else _json(text)
    return BodyView(len(body), "; ".join(notes), text, as_json, "\n".join(_hex_rows(shown)))


def _unpacked(body: bytes, sys_flag: int) -> tuple[bytes, str]:
    """Return the beginning of a body as it was sent, a byte more than is shown, and what is to be said of it."""
    if not sys_flag & sys_flags.COMPRESSED:
        return body, ""
    if sys_flag & sys_flags.COMPRESSION_MASK not in _ZLIB:
        return body, "compressed in a way that is not known here, and shown as it is stored"
    try:
        return zlib.decompressobj().decompress(body, SHOWN_BYTES_MAX + 1), "was compressed"
    except zlib.error:
        return body, "said to be compressed, but cannot be unpacked; shown as it is stored"


def _text(body: bytes, *, is_cut: bool) -> str | None:
    """Return a body as text; None: it is none. Of one that was cut, half a character at its end is left out."""
    least = len(body) - _CHARACTER_BYTES_MAX if is_cut else len(body) - 1
    for end in range(len(body), max(least, -1), -1):
        try:
            text = body[:end].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def _json(text: str) -> str | None:
    """Return a text as JSON with a line for each value; None: it is none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        shown = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # Deeply nested text grows by its indents.
    return shown if len(shown) <= 4 * SHOWN_BYTES_MAX else None


def _hex_rows(body: bytes) -> Iterator[str]:
    """Yield rows of bytes: where they stand, their digits, and what of them is ASCII."""
    for start in range(0, min(len(body), HEX_BYTES_MAX), _HEX_ROW_BYTES):
        row = body[start : start + _HEX_ROW_BYTES]
        digits = row.hex(" ").ljust(3 * _HEX_ROW_BYTES - 1)
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        yield f"{start:06x}  {digits}  {letters}"
