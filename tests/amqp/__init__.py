"""`penstock bridge`. Tests that need RabbitMQ are run separately: `pytest tests/amqp/rabbitmq.py`."""
