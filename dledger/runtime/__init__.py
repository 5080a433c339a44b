"""The shell around the core: trio tasks, sockets, clocks and the storage thread."""
