"""What runs behind a broker: its background thread, its OS locks, and the queue of blocked callers."""
