"""Moving tubes between stores, and exporting and importing them as files."""
