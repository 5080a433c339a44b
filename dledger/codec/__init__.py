"""Bytes to values and back, without I/O. Whatever a codec accepts is well-formed (house rule 8)."""
