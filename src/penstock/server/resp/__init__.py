"""The Redis protocol, so that Redis clients of any language can put, take and settle tasks."""
