"""Messages as RocketMQ stores them: records, properties, identifiers, hashes; without I/O."""
