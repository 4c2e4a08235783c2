"""Running a method on a stream: the spec, its job, the one evaluation loop, and a run's folder."""
