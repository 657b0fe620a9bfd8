"""Benchmark assertions: speed as a function of acceptance, and a gate on both clock and work.

Pure: ``bootstrap``, ``curve``, ``expression``, ``gate``, ``baseline_file``. On live engines:
``meter``, ``sweep``, ``fixture``. The hooks of pytest and pytest-benchmark: ``hooks``.
"""
