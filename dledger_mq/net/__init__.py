"""Sockets that carry remoting frames: the one place between the pure codecs and the network."""
