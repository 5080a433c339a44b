"""Decisions of a broker: request and state in, decision out.

A service module must not know sockets, files, tasks or the clock, nor how a decision is carried out: `broker.server`
stages records, answers and waits. What it reads of a log comes through a callable that is handed in.
"""
