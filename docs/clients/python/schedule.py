"""One reminder in two seconds, another at a moment. Needs pika."""
import datetime
import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2f"))
channel = connection.channel()
channel.confirm_delivery()  # basic_publish raises if the broker does not take it

moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=3)
for name, when in [("soon", {"x-delay": 2000}), ("later", {"x-deliver-at": moment.isoformat()})]:
    channel.basic_publish(
        "tidegate.in", "shop", b'{"remind": "pay"}',
        pika.BasicProperties(message_id=f"reminder-{name}", content_type="application/json", delivery_mode=2,
                             headers=when),
        mandatory=True)
connection.close()
