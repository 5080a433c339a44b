"""Clients that send as real ones do at their worst: many messages under one key, in ever other groupings, at once.

A round is a few messages under one or two keys, which differ in queue, tag or body. They are sent singly and in
batches, several on one connection without waiting; what is not acknowledged is regrouped and sent again, also while
earlier attempts still wait, elsewhere, over connections that are closed or left open.

All attempts of most rounds have one born time, so nothing may be stored twice. In the others each attempt is made
anew, after the one before was given up: a later attempt may be stored beside an earlier one, an earlier one never
after a later one.

Nothing here judges what is stored (broker/testing/model.py).
"""

from __future__ import annotations

from typing import Final

from broker.testing.client import SimClient
from broker.testing.forms import Fate, Form
from broker.testing.producers import send_request
from broker.testing.sim_broker import WALL_ZERO_MS
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

BURSTS_MAX: Final = 6
MESSAGES_MAX: Final = 4
REQUESTS_MAX: Final = 3
HASTE_MS_MAX: Final = 300
TAGS: Final = ("", "created", "paid")
BODIES: Final = (b"v1", b"v2")


class Juggler(SimClient):
    """One round after another; each is some bursts of requests."""

    def go_on(self) -> None:
        """Make up a round."""
        if self.is_stopped:
            return
        self.counts["rounds"] += 1
        number, topic = self.counts["rounds"], self.topic()
        keys = [f"{self.name}-{number}-{place}" for place in range(self.rng.randint(1, 2))]
        self._is_renewed = self.chance(self.settings.renewed_permille)
        self._forms: list[Form] = []
        for _ in range(1 if self._is_renewed else self.rng.randint(2, MESSAGES_MAX)):
            form = self._make_form(topic, self.rng.choice(keys))
            if form not in self._forms:
                self._forms.append(form)
                self.model.wanted(form, Fate(is_renewed=self._is_renewed))
        self._open = set(self._forms)
        self._bursts = 0
        self._born_ms = WALL_ZERO_MS + self.cluster.now_ms
        self._burst()

    def _make_form(self, topic: str, key: str) -> Form:
        tag = self.rng.choice(TAGS)
        named = {"UNIQ_KEY": key, **({"TAGS": tag} if tag else {})}
        return Form.of(topic, self.queue_id(), self.rng.choice(BODIES), named)

    def _burst(self) -> None:
        """Send some requests at once; what was acknowledged may be among them, for its client may not know."""
        self._bursts += 1
        if self._is_renewed:
            self._born_ms = WALL_ZERO_MS + self.cluster.now_ms
        self._unanswered = self.rng.randint(1, 1 if self._is_renewed else REQUESTS_MAX)
        for place in range(self._unanswered):
            self._request(is_first=place == 0)
        if self._is_renewed or self.chance(300):
            haste_ms = 1 + self.rng.randrange(HASTE_MS_MAX)
            self.cluster.at(self.cluster.now_ms + haste_ms, self._time_out, self._bursts)

    def _request(self, *, is_first: bool) -> None:
        """Send some of the round's messages of one queue.

        Answers of an earlier burst still count, but steer nothing.
        """
        queue_id = self.rng.choice(self._forms).queue_id
        same_queue = [form for form in self._forms if form.queue_id == queue_id]
        forms = self.rng.sample(same_queue, self.rng.randint(1, len(same_queue)))
        ext, body = send_request(forms, self._born_ms, queue_count=self.settings.queue_count)
        burst = self._bursts

        def answered(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.counts["acknowledged"] += 1
                self.answers.acknowledged(forms, answer)
                self._open.difference_update(forms)
            else:
                self.counts["refused" if answer is not None else "unknown"] += 1
            if burst == self._bursts:
                self._unanswered -= 1
                if not self._unanswered:
                    self.pause(self._go_further)

        how = self.ask if is_first else self.ask_there
        how(RequestCode.SEND_MESSAGE, ext, answered, body=body)

    def _time_out(self, burst: int) -> None:
        """Ask elsewhere while the first attempt may still wait."""
        if burst == self._bursts and self._unanswered:
            self.counts["unknown"] += self._unanswered
            self._unanswered = 0
            self.forget()
            self._go_further()

    def _go_further(self) -> None:
        if self._open and self._bursts < BURSTS_MAX:
            self._burst()
        else:
            self.pause(self.go_on)
