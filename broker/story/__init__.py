"""What became of a message, and what was at a time, told from a store's log alone.

places    a store's log and snapshots, read from beside; which of them a fold begins with
copies    one message in the log: every record of it, and what each is there for
steps     what happens to a message, as lines and as JSON
commands  the control records of an entry
watch     the entries after a message, and what each does to it
verdict   whether it is visible at the end, and why not
tell      all of these together: the story of one message
moment    the state at a time: offsets, open transactions, locks, timers
"""
