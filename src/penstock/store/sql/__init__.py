"""What the SQL stores share: named queries, migrations, steps, and connections to servers."""
