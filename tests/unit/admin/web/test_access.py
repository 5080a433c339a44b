"""The token and the sessions: only the token begins one, each ends, and none proves another's forms."""

from __future__ import annotations

from broker.admin.web.access import SESSION_S, SESSIONS_MAX, Access, is_proof, make_token

TOKEN = "correct horse battery"


def test_only_the_token_begins_a_session() -> None:
    access = Access(TOKEN, may_change=True)
    assert [access.sign_in(wrong, 0.0) for wrong in ("", TOKEN + "x", TOKEN[:-1], "\ud800")] == [
        None
    ] * 4
    session = access.sign_in(TOKEN, 0.0)
    assert session is not None
    assert access.session(session.key, 1.0) == session
    assert TOKEN not in repr(session)


def test_without_a_token_nobody_signs_in_and_nothing_changes() -> None:
    access = Access(None, may_change=True)
    assert access.sign_in("", 0.0) is None
    assert (access.may_change, access.has_token, access.is_open) == (False, False, True)


def test_a_session_ends() -> None:
    access = Access(TOKEN)
    session = access.sign_in(TOKEN, 0.0)
    assert session is not None
    assert access.session(session.key, SESSION_S - 1) is not None
    assert access.session(session.key, SESSION_S) is None
    assert access.session(session.key, 0.0) is None, "it stays ended"
    other = access.sign_in(TOKEN, 0.0)
    assert other is not None
    access.sign_out(other.key)
    assert access.session(other.key, 0.0) is None
    assert access.session(None, 0.0) is None


def test_sessions_are_bounded() -> None:
    access = Access(TOKEN)
    sessions = [access.sign_in(TOKEN, 0.0) for _ in range(SESSIONS_MAX + 1)]
    known = [each is not None and access.session(each.key, 0.0) is not None for each in sessions]
    assert known == [False] + [True] * SESSIONS_MAX


def test_a_form_proves_its_own_session_only() -> None:
    access = Access(TOKEN)
    one, other = access.sign_in(TOKEN, 0.0), access.sign_in(TOKEN, 0.0)
    assert one is not None
    assert other is not None
    assert is_proof(one, one.form_proof)
    assert not any(is_proof(one, proof) for proof in (other.form_proof, one.key, ""))
    assert len({one.key, one.form_proof, other.key, other.form_proof}) == 4


def test_tokens_differ() -> None:
    assert len({make_token() for _ in range(100)}) == 100
