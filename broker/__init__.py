"""A message broker on a replicated log that RocketMQ's own clients use unchanged."""
