"""The cost on a GPU. ``python -m benchmarks.gpu`` measures, and writes JSON and a table."""
