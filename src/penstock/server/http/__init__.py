"""HTTP: the JSON API, its OpenAPI document, events, metrics, and the dashboard."""
