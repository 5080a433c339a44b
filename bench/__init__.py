"""Benchmarks: `dledger-bench`, and a module for each smaller question; each beside its peer in the same run."""
