"""Figures over HTTP for both servers: how they are written, and the port that gives them; not what any means."""
