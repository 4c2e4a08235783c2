"""Shared building blocks of the methods; pure functions where possible."""
