"""Certificates of a server process: read, looked after, and loaded again when they change."""
