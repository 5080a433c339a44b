"""The history of a run, and other forms of it."""
