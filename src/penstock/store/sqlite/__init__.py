"""The store in one SQLite file, and the only folder that imports apsw."""
