"""What the SQL stores share: named queries, migrations, checks of groups."""
