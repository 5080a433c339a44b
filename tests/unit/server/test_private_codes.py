"""Proofs of membership: what a hello between nodes must show."""

from __future__ import annotations

from broker.server.links.private_codes import OUTDATED_HELLO, HelloRefusal, link_proof, refuse_hello
from dledger_mq.remoting.codes import ResponseCode


def test_a_proof_is_bound_to_everything() -> None:
    proof = link_proof("s", group="g", node_id="n0", nonce="x")
    assert proof == link_proof("s", group="g", node_id="n0", nonce="x")
    others = {
        link_proof(None, group="g", node_id="n0", nonce="x"),
        link_proof("s", group="gn", node_id="0", nonce="x"),
        link_proof("s", group="g", node_id="n1", nonce="x"),
        link_proof("s", group="g", node_id="n0", nonce="y"),
    }
    assert len(others) == 4
    assert proof not in others


def refusal_of(secret: str | None = "s", **changed: str) -> HelloRefusal | None:
    """What a node n0 with nonce `new` and the secret `s` says to n1, who has this secret."""
    meant = changed.pop("nonce", "new")
    proof = link_proof(secret, group="g", node_id="n1", nonce=meant)
    ext = {"group": "g", "node": "n1", "nonce": meant, "proof": proof, **changed}
    return refuse_hello(
        ext, accepted=("s", "t"), group="g", is_member={"n0", "n1"}.__contains__, nonce="new"
    )


def test_a_hello_for_the_last_process_is_told_from_one_with_a_wrong_secret() -> None:
    assert refusal_of() is None
    outdated = refusal_of(nonce="old")
    assert outdated is not None
    assert outdated.code == OUTDATED_HELLO
    assert "secret" not in outdated.problem
    for wrong in (
        refusal_of(secret="guess"),
        refusal_of(secret=None),
        refusal_of(secret="guess", nonce="old"),
        refusal_of(proof=link_proof("s", group="g", node_id="n1", nonce="old")),
    ):
        assert wrong == (ResponseCode.NO_PERMISSION, "n1 does not know the group's secret")
    stranger, other = refusal_of(node="n7"), refusal_of(group="h")
    assert stranger == (ResponseCode.NO_PERMISSION, "n7 is not a member of group g")
    assert other == (ResponseCode.NO_PERMISSION, "this is group g, not h")


def test_a_node_of_before_does_not_say_which_process_it_means() -> None:
    proof = link_proof("s", group="g", node_id="n1", nonce="new")
    ext = {"group": "g", "node": "n1", "proof": proof}
    assert (
        refuse_hello(ext, accepted=("s",), group="g", is_member={"n1"}.__contains__, nonce="new")
        is None
    )


def test_while_a_secret_changes_a_link_opens_with_either() -> None:
    assert refusal_of(secret="t") is None
    assert refusal_of(secret="u") is not None
