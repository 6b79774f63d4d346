"""Tuning: what is measured of costs and acceptance becomes predictions, a front, a validated choice, a file."""
