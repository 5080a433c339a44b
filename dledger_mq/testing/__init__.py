"""What tests of code that uses the client need: a broker group in memory."""

from dledger_mq.testing.fake_group import IGNORED, LOST, FakeGroup, FakeNode, open_fake_group

__all__ = ["IGNORED", "LOST", "FakeGroup", "FakeNode", "open_fake_group"]
