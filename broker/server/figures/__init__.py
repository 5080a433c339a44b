"""A broker as it shows itself over HTTP: its figures, and whether it is ready. Gathered when somebody asks.

Each module yields the families of one matter; counters that they read are kept where things happen. Nothing here
decides anything, and nothing else uses what stands here.
"""
