"""Measurements that the documentation quotes, each reproducible by one command."""
