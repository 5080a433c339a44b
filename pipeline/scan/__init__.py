"""Reads the log's bytes into Arrow: a library that knows neither Spark nor a running broker.

arrays       Arrow's arrays and numpy's, over the same memory
records      CommitLog records back to back, from a segment or a pulled answer
properties   the property bytes of many records at once
columns      records as record batches of the wanted columns
entries      entry headers of a stretch of the log, every checksum verified (crc: many short ones at once)
stores       a store's folder: its segments, and where entries stand
plan         what to scan of a store, up to an entry that is known to be committed
ranges       one range of the log, piece by piece, and what to do about damage
control      what control records say
batches      a range as record batches: messages, control records, or both
"""
