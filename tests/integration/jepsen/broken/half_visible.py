"""A half message goes straight to its topic, where consumers read it."""

from broker.service import send


def is_half(properties: bytes, reconsume_times: int, delay_level: int) -> bool:
    return False


send._is_half = is_half
