"""Elastic jobs and RPC for Python that hold when machines don't."""
