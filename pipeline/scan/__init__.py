"""Reads the log's bytes into Arrow: a library that knows neither Spark nor a running broker.

records      CommitLog records back to back, from a segment or a pulled answer
properties   the property bytes of many records at once
columns      records as record batches of the wanted columns
"""
