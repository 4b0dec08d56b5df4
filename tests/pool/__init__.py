"""Redis in front, a database behind: what is lost, what is left between the two, and what is built anew."""
