"""Repair of lost entries from other members: whom to ask, which answers to accept, how to answer such requests.

Without clock, tasks and chance, like the engine: the runtime and the simulator drive it alike.
"""
