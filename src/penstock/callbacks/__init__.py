"""Tasks with a callback are POSTed to its URL: to hosts that are allowed, at addresses that were checked."""
