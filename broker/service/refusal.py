"""The refusal of a request, which all services share. It must not know what was asked."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_mq.remoting.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class Refusal:
    """Code and remark of an answer that refuses; nothing was done."""

    code: ResponseCode
    remark: str
