"""The clients that operate on a system, and the languages that they speak."""
