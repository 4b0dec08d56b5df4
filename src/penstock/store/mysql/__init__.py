"""The store in a MySQL or MariaDB database."""
