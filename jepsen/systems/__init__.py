"""The systems that are tested, and those that watch them."""
