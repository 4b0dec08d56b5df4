"""The commands: their arguments, roles and implementations."""
