"""`penstock bridge`. What needs RabbitMQ runs by command: `pytest tests/amqp/rabbitmq.py`."""
