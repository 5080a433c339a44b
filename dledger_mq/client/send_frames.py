"""The bytes of a send request, and the meaning of its answer: the client's hot path. Pure.

A general encoder costs more than everything else that a send needs, so the header is a template: what
stays the same for (group, topic, queue, flags) is made once, and each message fills in its time, its
properties and its opaque. A plain message, whose only property is its UNIQ_KEY, is put into a template of the
whole header. Answers are read by a typed decoder.

Header fields of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): a producer group, b topic, c default
topic, d queues of an auto-created topic, e queue id, f system flag, g born timestamp, h flag, i properties,
j reconsume times, k unit mode, m is batch. With credentials their fields come before these, the signature after them.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final

import msgspec

from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import FLAG_ONEWAY, PROTOCOL_VERSION
from dledger_mq.remoting.requests import NEWER_BATCH, ROWS_STORED, SINK_BATCH
from dledger_mq.remoting.signature import ACCESS_KEY, SIGNATURE, TEMPORARY

AUTO_CREATE_QUEUES: Final = 4
LANGUAGE: Final = "PYTHON"
_CACHE_MAX: Final = 4096

_PREFIX: Final = Layout(">II")
_json: Final = msgspec.json.encode
_SIGNED: Final = b'"%b":"%%b",' % SIGNATURE.encode()


class _SendSigner:
    """Signs sends of one producer group: their fields' values are put down here in the order in which they are signed.

    Attributes:
        fields: who signs, as it stands in a header.
    """

    def __init__(self, credentials: Credentials, group: str, default_queues: int) -> None:
        token = credentials.security_token
        self.fields = b'"%b":%b,' % (ACCESS_KEY.encode(), _json(credentials.access_key))
        if token is not None:
            self.fields += b'"%b":%b,' % (TEMPORARY.encode(), _json(token))
        self._first = f"{credentials.access_key}{token or ''}{group}"
        self._default = f"{AUTO_CREATE_TOPIC}{default_queues}"
        self._sign = credentials.key.signature

    def signature(
        self,
        queue: MessageQueue,
        body: bytes,
        properties: str,
        *,
        born_timestamp_ms: int,
        sys_flag: int,
        flag: int,
        is_batch: bool,
        sink_batch: str,
    ) -> bytes:
        """Return the signature of one send: by the names of its fields, AccessKey to m, and then the body."""
        values = (
            f"{self._first}{queue.topic}{self._default}{sink_batch}{queue.queue_id}{sys_flag}"
            f"{born_timestamp_ms}{flag}{properties}0false{'true' if is_batch else 'false'}"
        )
        return self._sign(values.encode(), body)


class SendTemplates:
    """Headers of one producer group, filled in per message, and signed where there are credentials."""

    def __init__(
        self,
        group: str,
        default_queues: int = AUTO_CREATE_QUEUES,
        credentials: Credentials | None = None,
    ) -> None:
        self._group = _json(group)
        self._signer = (
            None if credentials is None else _SendSigner(credentials, group, default_queues)
        )
        self._default_queues = default_queues
        self._heads: dict[tuple[MessageQueue, int, int, bool], bytes] = {}
        self._plain: dict[int, tuple[MessageQueue, bytes]] = {}  # by the identity of the queue
        self._plain_templates: dict[MessageQueue, bytes] = {}
        self._tails = {
            is_oneway: (
                b'"j":"0","k":"false"},"flag":%d,"language":"%b","opaque":%%d,'
                b'"serializeTypeCurrentRPC":"JSON","version":%d}'
                % (FLAG_ONEWAY if is_oneway else 0, LANGUAGE.encode(), PROTOCOL_VERSION)
            )
            for is_oneway in (False, True)
        }

    def frame(
        self,
        queue: MessageQueue,
        body: bytes,
        properties: bytes,
        *,
        opaque: int,
        born_timestamp_ms: int,
        sys_flag: int = 0,
        flag: int = 0,
        is_batch: bool = False,
        is_oneway: bool = False,
        sink_batch: str | None = None,
    ) -> bytes:
        """Return the whole frame of one send; with `sink_batch` its messages are rows of that batch."""
        place = (queue, sys_flag, flag, is_batch)
        head = self._heads.get(place)
        if head is None:
            head = self._head(queue, sys_flag, flag, is_batch=is_batch)
        if sink_batch is not None:
            head += b'"%b":%b,' % (SINK_BATCH.encode(), _json(sink_batch))
        text = properties.decode()
        tail = self._tails[is_oneway] % opaque
        if self._signer is not None:
            signature = self._signer.signature(
                queue,
                body,
                text,
                born_timestamp_ms=born_timestamp_ms,
                sys_flag=sys_flag,
                flag=flag,
                is_batch=is_batch,
                sink_batch=sink_batch or "",
            )
            tail = _SIGNED % signature + tail
        header = b'%b"g":"%d","i":%b,%b' % (head, born_timestamp_ms, _json(text), tail)
        size = len(header)
        return b"".join((_PREFIX.pack(4 + size + len(body), size), header, body))

    def plain(
        self,
        queue: MessageQueue,
        body: bytes,
        unique_key: str,
        *,
        opaque: int,
        born_timestamp_ms: int,
    ) -> bytes:
        """Return what `frame` does for a message without flags that has no property but its key, of hex digits."""
        known = self._plain.get(id(queue))
        if known is None or known[0] is not queue:
            known = self._know_plain(queue)
        if self._signer is None:
            header = known[1] % (born_timestamp_ms, unique_key.encode(), opaque)
        else:
            signature = self._signer.signature(
                queue,
                body,
                f"UNIQ_KEY\x01{unique_key}\x02",
                born_timestamp_ms=born_timestamp_ms,
                sys_flag=0,
                flag=0,
                is_batch=False,
                sink_batch="",
            )
            header = known[1] % (born_timestamp_ms, unique_key.encode(), signature, opaque)
        size = len(header)
        return b"".join((_PREFIX.pack(4 + size + len(body), size), header, body))

    def _know_plain(self, queue: MessageQueue) -> tuple[MessageQueue, bytes]:
        """Make and keep the header of plain messages; born timestamp, key and opaque are put in with `%`.

        `plain` calls it for queues that it has not met: those of a route stay the same objects, and a look-up by
        what a queue is costs more than one by which it is.
        """
        template = self._plain_templates.get(queue)
        if template is None:
            head = self._head(queue, 0, 0, is_batch=False).replace(b"%", b"%%")
            tail = self._tails[False]
            if self._signer is not None:
                tail = _SIGNED + tail
            template = b'%b"g":"%%d","i":"UNIQ_KEY\\u0001%%b\\u0002",%b' % (head, tail)
        if len(self._plain) >= _CACHE_MAX:
            self._plain.clear()
            self._plain_templates.clear()
        self._plain_templates[queue] = template
        known = self._plain[id(queue)] = (queue, template)
        return known

    def _head(self, queue: MessageQueue, sys_flag: int, flag: int, *, is_batch: bool) -> bytes:
        """Make and keep the part of a header that stays the same for a queue and these flags.

        `frame` calls it for what is not cached.
        """
        code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
        head = (
            b'{"code":%d,"extFields":{%b"a":%b,"b":%b,"c":"%b","d":"%d","e":"%d","f":"%d","h":"%d",'
            b'"m":"%b",'
            % (
                code,
                b"" if self._signer is None else self._signer.fields,
                self._group,
                _json(queue.topic),
                AUTO_CREATE_TOPIC.encode(),
                self._default_queues,
                queue.queue_id,
                sys_flag,
                flag,
                b"true" if is_batch else b"false",
            )
        )
        if len(self._heads) >= _CACHE_MAX:  # flags that vary per message must not fill the memory
            self._heads.clear()
        self._heads[queue, sys_flag, flag, is_batch] = head
        return head


class SendAnswerFields(msgspec.Struct, rename="camel", gc=False):
    """The ext fields of an answer to a send."""

    msg_id: str = ""
    queue_id: QueueId = QueueId(-1)
    queue_offset: QueueOffset = QueueOffset(-1)
    transaction_id: str | None = None
    recall_handle: str | None = None
    rows_stored: str | None = msgspec.field(name=ROWS_STORED, default=None)
    newer_batch: int | None = msgspec.field(name=NEWER_BATCH, default=None)


class SendAnswer(msgspec.Struct, gc=False):
    """The header of an answer to a send."""

    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    fields: SendAnswerFields | None = msgspec.field(name="extFields", default=None)


_decode: Final = msgspec.json.Decoder(SendAnswer, strict=False).decode


def decode_answer(frame: Frame) -> SendAnswer:
    """Read the answer to a send.

    Raises:
        ConnectionLostError: it is no JSON header; nothing on this connection can be trusted.
    """
    try:
        return _decode(frame.header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConnectionLostError(f"the answer to a send cannot be read: {error}") from error
