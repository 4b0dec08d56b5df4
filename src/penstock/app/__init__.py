"""Applications: functions as tasks, and what a handler can use while it runs."""
