"""The log on disk, behind a narrow disk interface (docs/formats/, adr/0004).

Nothing here knows peers, roles or tasks: the engine decides what is written, the runtime in which thread.
"""
