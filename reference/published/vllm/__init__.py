"""The KV transfer code of published vLLM versions."""
