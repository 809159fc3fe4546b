"""What runs in the child process, beside an unpacked SGLang wheel."""
