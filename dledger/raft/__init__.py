"""The consensus core: a state machine without I/O (docs/architecture.md, adr/0001).

Feed it events with the time, carry out the effects that it returns, in their order. It reads no
clock, draws no chance, opens no file and knows no socket; it does not know what a body means.
`node.RaftNode` is the door; `events`, `effects` and `messages` are what goes in and out of it.
"""
