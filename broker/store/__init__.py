"""Everything a broker keeps, as a fold over committed entries."""
