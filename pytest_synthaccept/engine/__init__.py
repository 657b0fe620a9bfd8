"""Real vLLM engines under a forced acceptance rate: start, drive, read back, shut down."""
