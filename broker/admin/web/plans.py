"""Changes that were shown and may be confirmed: each once, by whom it was shown to, for some minutes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.admin.web.access import BrowserSession, make_token

PLANS_MAX: Final = 64
PLAN_S: Final = 600.0


class ChangeRefusedError(Exception):
    """Surely nothing was changed; the text says why."""


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The end of a change: a sentence, how well it went (`good`, `warn`, `bad`), and lines with more."""

    text: str
    mark: str
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A change that was shown.

    Attributes:
        summary: one line, for the log as well.
        back: the page that it belongs to.
        work: carries it out exactly as shown; raises ChangeRefusedError.
    """

    summary: str
    back: str
    work: Callable[[], Awaitable[PlanOutcome]]


@dataclass(frozen=True, slots=True)
class _Shown:
    plan: ChangePlan
    session_key: str
    until_s: float


class Plans:
    """The changes that may be confirmed just now."""

    def __init__(self) -> None:
        self._shown: OrderedDict[str, _Shown] = OrderedDict()

    def add(self, plan: ChangePlan, session: BrowserSession, now_s: float) -> str:
        """Take note of a change that is shown; return the key that confirms it."""
        key = make_token()
        self._shown[key] = _Shown(plan, session.key, now_s + PLAN_S)
        while len(self._shown) > PLANS_MAX:
            self._shown.popitem(last=False)
        return key

    def take(self, key: str, session: BrowserSession, now_s: float) -> ChangePlan:
        """Return the change that a key confirms; it confirms none a second time.

        Raises:
            ChangeRefusedError: there is no such change, no more, or it was shown to somebody else.
        """
        shown = self._shown.get(key)
        if shown is None or shown.session_key != session.key:
            raise ChangeRefusedError("this change was confirmed before, or is not known")
        del self._shown[key]
        if shown.until_s <= now_s:
            raise ChangeRefusedError("this change was shown too long ago: look at it again")
        return shown.plan
