"""The impure shell on trio: sockets, time, tasks. It decides nothing about the protocol."""
