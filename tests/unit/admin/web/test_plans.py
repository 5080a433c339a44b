"""A change is confirmed once, by whom it was shown to, and not long after."""

from __future__ import annotations

import pytest

from broker.admin.web.access import Access, BrowserSession
from broker.admin.web.plans import (
    PLAN_S,
    PLANS_MAX,
    ChangePlan,
    ChangeRefusedError,
    PlanOutcome,
    Plans,
)

TOKEN = "a token that is long enough"


async def work() -> PlanOutcome:
    return PlanOutcome("done", "good")


PLAN = ChangePlan("a change", "/", work)


@pytest.fixture
def session() -> BrowserSession:
    return session_of()


def session_of() -> BrowserSession:
    begun = Access(TOKEN).sign_in(TOKEN, 0.0)
    assert begun is not None
    return begun


def test_a_change_is_confirmed_once(session: BrowserSession) -> None:
    plans = Plans()
    key = plans.add(PLAN, session, 0.0)
    assert plans.take(key, session, 1.0) is PLAN
    with pytest.raises(ChangeRefusedError, match="confirmed before"):
        plans.take(key, session, 1.0)


def test_nobody_else_confirms_it_nor_takes_it_away(session: BrowserSession) -> None:
    plans = Plans()
    key = plans.add(PLAN, session, 0.0)
    with pytest.raises(ChangeRefusedError, match="not known"):
        plans.take(key, session_of(), 1.0)
    assert plans.take(key, session, 1.0) is PLAN


def test_it_is_not_confirmed_much_later(session: BrowserSession) -> None:
    plans = Plans()
    key = plans.add(PLAN, session, 0.0)
    with pytest.raises(ChangeRefusedError, match="too long ago"):
        plans.take(key, session, PLAN_S)


def test_what_was_shown_is_bounded(session: BrowserSession) -> None:
    plans = Plans()
    keys = [plans.add(PLAN, session, 0.0) for _ in range(PLANS_MAX + 1)]
    with pytest.raises(ChangeRefusedError, match="not known"):
        plans.take(keys[0], session, 1.0)
    assert plans.take(keys[1], session, 1.0) is PLAN
