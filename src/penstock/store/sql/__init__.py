"""What the SQL stores share: named queries and migrations."""
