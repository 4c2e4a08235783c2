"""Figures and the self-contained report page."""
