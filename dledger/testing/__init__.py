"""Public fakes: simulated disk and network, whole groups under one seed, contract checks.

They may know all of `dledger`; nothing of it knows them.
"""
