"""A stored message as lines for people, and as JSON for scripts. Pure; it must not know how messages are found.

Bodies and properties are whatever an application has sent: text is shown without control characters, and what is no
text in hexadecimal digits.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.admin.message_search import FoundMessage
from broker.admin.printing import NONE, at, number, shown
from dledger_mq.client.messages import received
from dledger_mq.message.hosts import unpack_host
from dledger_mq.message.record import StoredMessage

BODY_BYTES: Final = 1024
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
_HEX_ROW_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class BodyForm:
    """The way in which a body is shown.

    Attributes:
        kind: text (what is no text in hex), hex, base64 or none.
        bytes_max: at most so many bytes of it.
    """

    kind: str = "text"
    bytes_max: int = BODY_BYTES


def message_json(found: FoundMessage, form: BodyForm) -> dict[str, object]:
    """Return a message as scripts read it; what it does not have is null."""
    record, message = found.record, received(found.record, found.broker)
    body, encoding = _encoded(message.body, form)
    return {
        "topic": record.topic,
        "broker": found.broker or None,
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "message_id": message.message_id,
        "unique_key": record_text(record, b"UNIQ_KEY"),
        "keys": list(message.keys),
        "tags": message.tags,
        "born_ms": record.born_timestamp_ms,
        "born_host": _host(record.born_host),
        "stored_ms": record.store_timestamp_ms,
        "store_host": _host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "size_bytes": record.size_bytes,
        "properties": message.properties,
        "body_bytes": len(message.body),
        "body_encoding": encoding,
        "body": body,
        "body_cut": form.kind != "none" and len(message.body) > form.bytes_max,
        "body_packed": message.is_packed,
    }


def message_lines(found: FoundMessage, form: BodyForm) -> Iterator[str]:
    """Yield a message line by line, its body last."""
    record, message = found.record, received(found.record, found.broker)
    yield f"{shown(record.topic)}, {shown(found.broker or NONE)} queue {record.queue_id}, offset {record.queue_offset}"
    yield f"  message id   {message.message_id}"
    yield f"  unique key   {shown(record_text(record, b'UNIQ_KEY') or NONE)}"
    yield f"  keys, tags   {shown(' '.join(message.keys) or NONE)}, {shown(message.tags or NONE)}"
    yield f"  born         {at(record.born_timestamp_ms)} at {_host(record.born_host)}"
    yield f"  stored       {at(record.store_timestamp_ms)} at {_host(record.store_host)}"
    yield f"  sent back    {record.reconsume_times} times"
    yield f"  flags        {record.flag}, of the system {record.sys_flag}"
    for name, value in sorted(message.properties.items()):
        yield f"  property     {shown(name)} = {shown(value)}"
    yield from _body_lines(message.body, form, is_packed=message.is_packed)


def record_text(record: StoredMessage, name: bytes) -> str | None:
    """Return one property as text; None: it has none."""
    value = record.find(name)
    return None if value is None else value.decode(errors="replace")


def _body_lines(body: bytes, form: BodyForm, *, is_packed: bool) -> Iterator[str]:
    """Yield the first bytes of a body, and how much more there is."""
    packed = ", compressed in a way that is not known here" if is_packed else ""
    yield f"  body         {number(len(body))} bytes{packed}"
    part = body[: form.bytes_max]
    is_cut = len(part) < len(body)
    text = _as_text(part, is_cut=is_cut) if form.kind == "text" else None
    if form.kind == "base64":
        yield f"    {base64.b64encode(part).decode()}"
    elif text is not None:
        for line in text.split("\n"):
            yield f"    {shown(line, len(line))}"
    elif form.kind != "none":
        for start in range(0, len(part), _HEX_ROW_BYTES):
            yield f"    {start:06x}  {part[start : start + _HEX_ROW_BYTES].hex(' ')}"
    if form.kind != "none" and is_cut:
        yield f"    ... {len(body) - len(part)} bytes more: --body-bytes"


def _encoded(body: bytes, form: BodyForm) -> tuple[str | None, str | None]:
    """Return the first bytes of a body as text in JSON, and how it was made."""
    part = body[: form.bytes_max]
    if form.kind == "none":
        return None, None
    if form.kind == "base64":
        return base64.b64encode(part).decode(), "base64"
    text = _as_text(part, is_cut=len(part) < len(body)) if form.kind == "text" else None
    return (part.hex(), "hex") if text is None else (text, "text")


def _as_text(part: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text; None: they are none. A character that was cut off at the end is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(part, final=not is_cut)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _host(host: bytes) -> str:
    address, port = unpack_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
