"""The PostgreSQL store: verbs are functions of the database, called once each."""
