"""What each request does: handlers of sends, pulls, offsets, transactions, locks, clients and tools."""
