"""An OpenAI-compatible server around the one loop, with continuous batching. Needs the extra `serve`."""
