"""`dledger-proxy`: the door for RocketMQ 5's gRPC clients, in front of broker groups, which it asks as any client does.

protocol/    the messages of the wire, and their numbers
refusals     a request that is refused: the code and the reason, and what brokers' refusals become
checks       names and labels that a client gives
outgoing     a message of a producer, as brokers take it
incoming     a message of a broker, as consumers get it
handles      receipts and transaction ids, which say all that is needed later, to whichever proxy they come
clients      who is connected, with which settings, and the streams that lead to them
settings     what a client is told when it has told its own
routing      routes and assignments
producing    sends, ends of transactions, recalls
checking     brokers that ask how a transaction ended: passed on to a producer
consuming    receiving, acknowledging, other times, dead letters
renewals     messages that the proxy keeps for a consumer until it has finished
service      the calls, each with its answer whatever happens
server       the port
cli          the command
"""
