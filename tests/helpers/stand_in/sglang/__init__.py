"""Stands in for sglang where a test wants a server in a process of its own: put this package's parent on PYTHONPATH."""
