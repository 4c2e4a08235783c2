"""Ostinato: continual test-time adaptation that remembers the domains it has met."""

__version__ = "0.1.0"
