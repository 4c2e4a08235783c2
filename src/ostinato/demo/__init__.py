"""The demo: an embedded model meets embedded domains that come back, in about two minutes."""
