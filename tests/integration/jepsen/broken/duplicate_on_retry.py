"""The window of recent sends is not looked at: what a client sends again is stored again."""

from broker.service.repeats import EarlierSend, Repeats
from broker.service.send import MessagePlan, SendPlan


def look(self: Repeats, plan: SendPlan, message: MessagePlan, born_ms: int) -> EarlierSend | None:
    return None


Repeats._look = look  # type: ignore[method-assign]
