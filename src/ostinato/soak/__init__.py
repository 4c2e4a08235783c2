"""A long run that tries to wear a method down: kinds of traffic in turn, reloads and kills.

`supervisor` starts a process that adapts batch by batch (`worker`) and kills it now and then;
`log` is what that process leaves behind, `tenths` what follows from it, `page` shows it.
"""
