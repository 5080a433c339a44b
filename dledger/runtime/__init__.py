"""The I/O shell on trio: sockets, time, tasks. It makes no decision about the protocol."""
