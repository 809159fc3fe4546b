"""Published code of other projects, unmodified, in child processes: SGLang and vLLM."""
