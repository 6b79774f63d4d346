"""The fixtures of the server's tests; see serving_tiny."""

from serving_tiny import ask, client, server, tiny, tiny_folder

__all__ = ["ask", "client", "server", "tiny", "tiny_folder"]
