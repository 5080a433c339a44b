"""A broker and name server that cost little: the other end of `bench.client`, in a process of its own.

    python -m bench.client_peer     prints "host:port", and ends with its standard input

It stores nothing. Sends are answered as stored, all those of a read with one write, as by a group that syncs once for
them; pulls bring messages of 1 KiB without end, with the queue offsets that were asked for. It knows as much of the
protocol as a client needs to be at work.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from typing import Any, Final

from dledger_mq.message.record import encode_record
from dledger_mq.remoting.codes import RequestCode, ResponseCode

TOPIC: Final = "Bench"
QUEUE_COUNT: Final = 4
BODY_BYTES: Final = 1024
BROKER_NAME: Final = "broker-a"
RECORD_COUNT: Final = 1024
_QUEUE_ID_AT: Final = 12
_QUEUE_OFFSET_AT: Final = 20
_END: Final = 2**40
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_SEND_CODES: Final = (b'{"code":310', b'{"code":320')
_STORED: Final = (
    b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true",'
    b'"msgId":"7F00000100002A9F%016d","queueId":"-1","queueOffset":"%d"},"flag":1,"language":"JAVA",'
    b'"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)


def made_record(number: int) -> bytes:
    """Return a record with the properties that a message with a tag has."""
    return encode_record(
        topic=TOPIC.encode(),
        queue_id=0,
        queue_offset=number,
        physical_offset=1104 * number,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=_HOST,
        store_timestamp_ms=1_700_000_000_001,
        store_host=_HOST,
        body=b"%08d" % number + b"x" * (BODY_BYTES - 8),
        properties=b"UNIQ_KEY\x017F0000010001%020X\x02TAGS\x01bench\x02" % number,
    )


class StubBroker:
    """Answers the requests of any number of connections, a thread for each."""

    def __init__(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._sock.getsockname())
        self._members: list[str] = []
        self._records = [made_record(number) for number in range(RECORD_COUNT)]

    def serve(self) -> None:
        """Accept connections without end."""
        while True:
            sock, _ = self._sock.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve_one, args=(sock,), daemon=True).start()

    def _serve_one(self, sock: socket.socket) -> None:
        """Answer what comes over one connection, until it ends."""
        buffer, room = bytearray(), memoryview(bytearray(1024 * 1024))
        while count := sock.recv_into(room):
            buffer += room[:count]
            at, answers = 0, list[bytes]()
            while len(buffer) - at >= 8:
                size, header_size = struct.unpack_from(">ii", buffer, at)
                if len(buffer) - at < size + 4:
                    break
                body_at = at + 8 + header_size
                answers.append(
                    self._answer(
                        bytes(buffer[at + 8 : body_at]), bytes(buffer[body_at : at + 4 + size])
                    )
                )
                at += size + 4
            del buffer[:at]
            if answers:
                sock.sendall(b"".join(answers))

    def _answer(self, header: bytes, body: bytes) -> bytes:
        """Answer one request; sends are recognised without reading their JSON."""
        if header.startswith(_SEND_CODES):
            number = int(header.rsplit(b'"opaque":', 1)[1].split(b",", 1)[0])
            return _frame(_STORED % (number, number, number))
        request = json.loads(header)
        code, ext, status = request["code"], request.get("extFields") or {}, ResponseCode.SUCCESS
        fields: dict[str, object] = {}
        answer = b""
        if code == RequestCode.PULL_MESSAGE:
            offset, count = int(ext["queueOffset"]), int(ext["maxMsgNums"])
            answer = self._pulled(int(ext["queueId"]), offset, count)
            fields = {"nextBeginOffset": offset + count, "minOffset": 0, "maxOffset": _END}
        elif code == RequestCode.GET_ROUTEINFO_BY_TOPIC and ext["topic"] != TOPIC:
            status = ResponseCode.TOPIC_NOT_EXIST
        elif code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            answer = _json(self._route())
        elif code == RequestCode.HEART_BEAT:
            self._members = [json.loads(body)["clientID"]]
        elif code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            answer = _json({"consumerIdList": self._members})
        elif code == RequestCode.LOCK_BATCH_MQ:
            answer = _json({"lockOKMQSet": json.loads(body)["mqSet"]})
        elif code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET):
            fields = {"offset": 0}
        texts = {name: str(value) for name, value in fields.items()}
        head = {"code": int(status), "extFields": texts, "flag": 1, "opaque": request["opaque"]}
        return _frame(_json(head), answer)

    def _route(self) -> dict[str, Any]:
        """Return the route of the topic: one broker with all its queues."""
        queues = {
            "brokerName": BROKER_NAME,
            "perm": 6,
            "readQueueNums": QUEUE_COUNT,
            "writeQueueNums": QUEUE_COUNT,
            "topicSysFlag": 0,
        }
        broker = {
            "brokerAddrs": {"0": self.address},
            "brokerName": BROKER_NAME,
            "cluster": "DefaultCluster",
        }
        return {"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]}

    def _pulled(self, queue_id: int, offset: int, count: int) -> bytes:
        """Return so many records from an offset on."""
        records = []
        for place in range(offset, offset + count):
            record = bytearray(self._records[place % RECORD_COUNT])
            struct.pack_into(">i", record, _QUEUE_ID_AT, queue_id)
            struct.pack_into(">q", record, _QUEUE_OFFSET_AT, place)
            records.append(record)
        return b"".join(records)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def main() -> int:
    """Serve until standard input ends."""
    broker = StubBroker()
    threading.Thread(target=broker.serve, daemon=True).start()
    sys.stdout.write(broker.address + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
