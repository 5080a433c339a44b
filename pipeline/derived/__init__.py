"""Derived state, rebuilt from the log and compared with the copy that a node keeps.

fold      the broker's own fold over a store's committed log, stopping where something is to be compared
kept      what a node keeps: snapshots, and the files of consume queues and of the key index
compare   two states, component by component; the first difference of each in words
rebuild   the derived state written out, as files and as a snapshot
"""
