"""Transactions of the broker group in memory : half messages, their ends, checks on demand."""

from __future__ import annotations

from dledger_mq.message.names import HALF_TOPIC
from dledger_mq.message.properties import decode_properties
from dledger_mq.message.record import StoredMessage, encode_record
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request, make_response
from dledger_mq.remoting.requests import SendFields
from dledger_mq.testing.fake_log import FakeLog, FakePlace

COMMITTED = 8
ROLLED_BACK = 12

_ANSWERS = {
    COMMITTED: ResponseCode.TRANSACTION_SHOULD_COMMIT,
    ROLLED_BACK: ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
}


class FakeTransactions:
    """Half messages and how they ended.

    Attributes:
        verdicts: by half queue offset: COMMITTED or ROLLED_BACK; the others are open.
    """

    def __init__(self, log: FakeLog) -> None:
        self.verdicts: dict[int, int] = {}
        self._log = log

    def begin(self, fields: SendFields, body: bytes, properties: bytes) -> FakePlace:
        """Keep a half message where no consumer looks."""
        real = b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (fields.topic.encode(), fields.queue_id)
        return self._log.store(
            HALF_TOPIC,
            0,
            body,
            properties + real,
            sys_flag=fields.sys_flag & ~12,
            flag=fields.flag,
            born_ms=fields.born_timestamp_ms,
        )

    def end(self, request: RemotingCommand) -> RemotingCommand:
        """Answer END_TRANSACTION: the first decision counts, later ones get it as answer."""
        place = int(request.ext["tranStateTableOffset"])
        wanted = int(request.ext["commitOrRollback"])
        recorded = self.verdicts.get(place)
        if recorded is None:
            self.verdicts[place] = recorded = wanted
            if wanted == COMMITTED:
                half = self._log.messages(HALF_TOPIC)[place]
                named = decode_properties(half.properties)
                self._log.store(
                    named["REAL_TOPIC"],
                    int(named["REAL_QID"]),
                    half.body,
                    half.properties,
                    sys_flag=half.sys_flag | COMMITTED,
                    flag=half.flag,
                    born_ms=half.born_timestamp_ms,
                )
        code = ResponseCode.SUCCESS if recorded == wanted else _ANSWERS[recorded]
        return make_response(request.opaque, code, ext={"commitOrRollback": str(recorded)})

    def checks(self, broker_name: str) -> list[bytes]:
        """Make a CHECK_TRANSACTION_STATE frame for each open transaction."""
        return [
            self._check(half, broker_name)
            for half in self._log.messages(HALF_TOPIC)
            if half.queue_offset not in self.verdicts
        ]

    @staticmethod
    def _check(half: StoredMessage, broker_name: str) -> bytes:
        """Encode the request that asks a producer for the outcome.

        Its body is the half message as the broker stores it.
        """
        named = decode_properties(half.properties)
        record = encode_record(
            topic=named["REAL_TOPIC"].encode(),
            queue_id=int(named["REAL_QID"]),
            queue_offset=half.queue_offset,
            physical_offset=half.physical_offset,
            sys_flag=half.sys_flag,
            born_timestamp_ms=half.born_timestamp_ms,
            born_host=half.born_host,
            store_timestamp_ms=half.store_timestamp_ms,
            store_host=half.store_host,
            body=half.body,
            properties=half.properties,
        )
        ext = {
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "msgId": named["UNIQ_KEY"],
            "transactionId": named["UNIQ_KEY"],
            "bname": broker_name,
        }
        request = make_request(RequestCode.CHECK_TRANSACTION_STATE, 0, ext, record, is_oneway=True)
        return encode_command(request)
