"""A hot standby is promoted after the primary died: what was put and replicated is there, and work continues on it."""
