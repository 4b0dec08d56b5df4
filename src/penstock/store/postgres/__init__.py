"""The PostgreSQL store. Each hot call is one round trip and one transaction."""
