"""What runs in the child process, beside an unpacked vLLM wheel."""
