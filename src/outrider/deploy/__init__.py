"""Deployment on other engines: from a configuration to the commands that serve it there. Runs nothing."""
