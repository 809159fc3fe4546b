"""Event logs: read, checked against the laws, and told room by room."""
