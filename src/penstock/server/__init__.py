"""The server: the Redis protocol, the HTTP API and the dashboard on one broker. It parses, calls and renders."""
