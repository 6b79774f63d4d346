"""Modules of trained drafters, and nothing else: no files, no loops."""
