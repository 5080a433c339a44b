"""Ports that brokers and name servers serve; it knows connections and frames, and not what stands in them."""
