"""The broker process: listeners, connections, long polling, forwarding, registration."""
