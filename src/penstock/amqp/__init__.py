"""Moves work between queues of RabbitMQ and tubes: `penstock bridge`."""
