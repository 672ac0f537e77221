"""A reminder in an hour, and how it is taken back: the answer says what became of it. Needs pika."""
import time
import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2f"))
channel = connection.channel()
answers = []


def answered(_channel, _method, properties, body):
    if properties.correlation_id == "ask-1":  # it may come twice
        answers.append(body.decode())


channel.basic_consume("amq.rabbitmq.reply-to", answered, auto_ack=True)
channel.basic_publish(
    "tidegate.in", "shop", b'{"remind": "pay"}',
    pika.BasicProperties(message_id="reminder-17", content_type="application/json", delivery_mode=2,
                         headers={"x-delay": 3600_000}))
channel.basic_publish(
    "tidegate.in", "shop", b"",
    pika.BasicProperties(type="tidegate.cancel", message_id="reminder-17",
                         reply_to="amq.rabbitmq.reply-to", correlation_id="ask-1"))
end = time.monotonic() + 10
while not answers and time.monotonic() < end:
    connection.process_data_events(1)
print(answers[0] if answers else "no answer: ask again")
connection.close()
