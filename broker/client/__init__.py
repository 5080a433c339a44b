"""Producer and consumers on trio, and a blocking facade; they follow the leader by themselves."""
