"""Public fakes: simulated disk and network, whole groups under one seed, contract checks."""
