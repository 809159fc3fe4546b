"""What an engine says without being recorded, as an event log: SGLang's text logs, and its OpenTelemetry spans.

Neither shows the status table. A line is printed some time after the store that it is about, by whichever thread gets
the handler's lock, so the order of two lines of two threads is not that of their stores. An event therefore says
what was *written* or *concluded*, and has a ``status`` only where the line itself says what a thread saw. A law
that would need more is not judged (``docs/log-format.md``).
"""
