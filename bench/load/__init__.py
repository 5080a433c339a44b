"""Load on a server, from processes of their own that cost little: in C for raw frames, in Java for Apache's client."""
