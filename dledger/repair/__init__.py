"""Lost entries come back from other members: who is asked, what is believed, what is answered.

Without clock, tasks and chance, like the engine: the runtime and the simulator drive it alike.
"""
