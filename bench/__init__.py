"""Benchmarks: one module per question, each beside its peer in the same run."""
