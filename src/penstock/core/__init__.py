"""The rules of penstock, pure: no I/O, no clock, no threads, no randomness."""
