"""`dledger-node`: all that one machine runs, a name server and a member of each group, kept running."""
