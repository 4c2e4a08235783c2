"""Specs, the one evaluation loop, metrics, results and tables."""
