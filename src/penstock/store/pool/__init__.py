"""Redis in front, a database behind: the database has every task, Redis is an index that can be rebuilt."""
