"""Stores: a small shared key-value space that every other part stands on."""
