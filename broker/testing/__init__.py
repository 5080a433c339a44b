"""Brokers under seeds: the real parts of a broker over a simulated log, disk, network and clock."""
