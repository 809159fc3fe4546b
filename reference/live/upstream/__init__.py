"""Published SGLang, live: upstream's own scheduler, queues, managers and transfers, without a GPU."""
