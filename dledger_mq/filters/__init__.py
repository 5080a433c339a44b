"""Choosing messages by their properties, in the words of SQL92: text in, verdict out. Pure.

`compile_filter` reads a text once; the `PropertyFilter` that it returns judges messages. Brokers, the client, and
whoever else has properties use the same one. Nothing here knows topics, consumers or records.
"""

from dledger_mq.filters.errors import FilterTextError
from dledger_mq.filters.property_filter import TEXT_LENGTH_MAX, PropertyFilter, compile_filter

__all__ = ["TEXT_LENGTH_MAX", "FilterTextError", "PropertyFilter", "compile_filter"]
