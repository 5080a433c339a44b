"""Child processes: started, watched, started again when they end, taken over from a lost parent, stopped in order.

It must not know what the processes do: a program is a name, a command and a log.
"""
