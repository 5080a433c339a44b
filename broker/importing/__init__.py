"""Take over a store of Apache RocketMQ: read it, say what becomes of it, write the store that a group begins with."""
