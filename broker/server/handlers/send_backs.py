"""Messages that a consumer sends back for a later try (36): decided, staged again, answered when committed."""

from __future__ import annotations

from broker.server.handlers.plan_staging import stage_plan
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.refusal import Refusal
from broker.service.send import MessagePlan, SendPlan
from broker.service.send_back import SendBack, SendBackRules
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand


class SendBacks:
    """Takes messages back while this node leads.

    Attributes:
        refused_because: why all are refused now; empty: they are taken.
    """

    def __init__(self, commits: Commits, router: Router, rules: SendBackRules) -> None:
        self.refused_because = ""
        self._commits = commits
        self._router = router
        self._rules = rules

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        return (Handler(code, self.send_back, RequestKind.SEND_BACK, is_confirmed=True),)

    def send_back(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out CONSUMER_SEND_MSG_BACK.

        Raises:
            FieldError: a field is missing or impossible.
        """
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        if self.refused_because:
            request.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, self.refused_because)
            return
        ext = command.ext
        wanted = SendBack(
            PhysicalOffset(fields.int64(ext, "offset")),
            fields.text(ext, "group"),
            fields.int32(ext, "delayLevel", 0),
            fields.int32(ext, "maxReconsumeTimes", None),
        )
        plan = self._rules.decide(wanted, command.version)
        if plan is None:
            request.answer(ResponseCode.SUCCESS)
            return
        if isinstance(plan, Refusal):
            request.refuse(plan.code, plan.remark)
            return
        self._commits.create(plan.creation)
        message = plan.message
        copy = SendPlan(
            plan.topic,
            plan.queue_id,
            message.sys_flag,
            plan.reconsume_times,
            plan.delay_level,
            (MessagePlan(message.flag, message.body, plan.properties, b""),),
        )
        try:
            place = stage_plan(
                self._commits.staging, copy, message.born_timestamp_ms, message.born_host
            )
        except RecordError as error:
            # Not MESSAGE_ILLEGAL, which a send gets: RocketMQ answers 1 here, whatever the cause (rule L9).
            text = f"the message cannot be stored again: {error}"
            request.refuse(ResponseCode.SYSTEM_ERROR, text)
            return
        self._router.when_committed(
            request, place, lambda _staged, _place: request.answer(ResponseCode.SUCCESS)
        )
