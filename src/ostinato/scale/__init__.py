"""More than one machine: sweeps and streams over a Ray cluster. docs/scale.md says which when."""
