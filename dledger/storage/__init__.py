"""The log on disk, behind a narrow disk interface (docs/formats/, adr/0004)."""
