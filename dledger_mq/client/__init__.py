"""The client's parts: producers, consumers, routes, sessions. What is public stands in `dledger_mq`."""
