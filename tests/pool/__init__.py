"""Redis in front of a database: data loss, crashes between the two, and rebuilding Redis from the database."""
