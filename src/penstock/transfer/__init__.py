"""Tubes on their way: out of a store, into one, through a file or straight. Sits on the store contract alone."""
