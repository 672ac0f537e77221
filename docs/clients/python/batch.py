"""Three messages for one customer, which arrive as one batch; then three in one message. Needs pika."""
import json
import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2f"))
channel = connection.channel()
channel.confirm_delivery()

for n in (1, 2, 3):
    channel.basic_publish(
        "tidegate.in", "shop", json.dumps({"order": n}).encode(),
        pika.BasicProperties(message_id=f"order-{n}", content_type="application/json", delivery_mode=2,
                             headers={"x-customer": "anna"}),
        mandatory=True)

entries = [{"customer": "ben", "id": f"order-{n}", "payload": {"order": n}} for n in (4, 5, 6)]
channel.basic_publish(
    "tidegate.in", "shop", json.dumps(entries).encode(),
    pika.BasicProperties(content_type="application/vnd.tidegate+json", delivery_mode=2),
    mandatory=True)
connection.close()
