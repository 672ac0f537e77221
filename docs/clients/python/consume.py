"""Consumes batches and drops repeats by item id. Needs pika."""
import json
import sqlite3
import pika

seen = sqlite3.connect("seen.db")
seen.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, due INTEGER)")


def on_batch(channel, method, _properties, body):
    batch = json.loads(body)
    with seen:  # one transaction a batch: the work belongs into it
        for item in batch["items"]:
            if seen.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (item["id"], item["due"])).rowcount:
                print(batch["customer"], item["id"], item.get("payload"), flush=True)
    channel.basic_ack(method.delivery_tag)  # after the work, never before


connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2f"))
channel = connection.channel()
channel.queue_declare("shop-batches", durable=True)
channel.queue_bind("shop-batches", "tidegate.out", routing_key="shop")
channel.basic_qos(prefetch_count=10)
channel.basic_consume("shop-batches", on_batch)
channel.start_consuming()
