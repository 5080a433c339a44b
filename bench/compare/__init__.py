"""One table of several systems: the same rows, by the same generators, one system after the other in one run."""
