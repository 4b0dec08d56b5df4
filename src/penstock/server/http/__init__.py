"""HTTP: the JSON API, its description, events, metrics, and the pages of the dashboard."""
