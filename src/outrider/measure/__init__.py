"""Measuring: what passes and drafts cost on this machine."""
