"""Measurements and proofs of the pipeline on Spark: `python -m bench.pipeline`."""
