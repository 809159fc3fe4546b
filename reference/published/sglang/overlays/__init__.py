"""Code that is laid over published code: the fixes of the incident, and what can be mended without changing the wire.

A file has classes `Manager`, `Sender`, `Receiver` or `Scheduler`; each comes before upstream's own class, and calls it
with `super()`. No text of upstream is in them. They are loaded in the child process only, where `sglang` is.
"""
