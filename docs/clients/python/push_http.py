"""Pushes each customer's batches by HTTP to that customer's own address. Needs pika; ends when the broker does.

    python3 push_http.py addresses.json        # {"anna": "http://127.0.0.1:8001/push", ...}

* A batch is acked once its customer has answered 2xx, so what is not delivered stays in RabbitMQ, over a crash too.
* Customers do not wait for each other: one that fails or hangs is tried again with a growing pause, and its later
  batches wait behind it, in order. PREFETCH bounds how many batches wait here in all.
* A batch that fails and has been here for GIVE_UP, also behind others, goes to the queue FAILED; after NO_TRY it goes
  there untried. So RabbitMQ's limit for an ack (30 minutes) is kept.
* A receiver may see a batch twice (it worked, and its answer was lost). The header Idempotency-Key is the batch id, the
  same in every repeat from here; after a restart of tidegate the same items may come in another batch, so receivers
  drop repeats by item id.
"""
import collections
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse
import pika

QUEUE, FAILED = "shop-push", "shop-push-failed"
PREFETCH = 500
TIMEOUT = 10        # seconds for each step of a request
PAUSE = 0.5         # seconds before the second try; doubled up to
MAX_PAUSE = 60
GIVE_UP = 20 * 60   # seconds from the arrival of a batch here
NO_TRY = 25 * 60    # the same, for a batch that many others have held up
IDLE = 30           # seconds that a connection is kept without a batch

with open(sys.argv[1], encoding="utf-8") as file:
    addresses = json.load(file)
lines = {}                      # customer -> its batches, while it has a thread
lock = threading.Condition()
connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2f"))
channel = connection.channel()


def settle(tag, give_up=None):
    """Acks; before that, with `give_up`, lays the batch into the queue of failures. In pika's own thread."""
    def work():
        if give_up is not None:
            properties, body = give_up
            channel.basic_publish("", FAILED, body, properties, mandatory=True)     # raises if it is not taken
        channel.basic_ack(tag)
    connection.add_callback_threadsafe(work)


def pause_of(answer, attempt):
    asked = answer.getheader("Retry-After", "") if answer is not None else ""
    pause = float(asked) if asked.isdigit() else PAUSE * 2 ** min(attempt, 20) * random.uniform(0.8, 1.2)
    return min(pause, MAX_PAUSE)


def deliver(client, path, batch_id, body, content_type, arrived):
    """Tries one batch until it is taken. False: it was given up."""
    attempt = 0
    while time.monotonic() - arrived <= NO_TRY:
        answer = None
        try:
            client.request("POST", path, body, {"Content-Type": content_type, "Idempotency-Key": batch_id,
                                                "X-Attempt": str(attempt + 1)})
            answer = client.getresponse()
            answer.read(65536)
            if not answer.isclosed():
                client.close()          # it has more to say than we want to hear
            if 200 <= answer.status < 300:
                return True
            why = f"HTTP {answer.status}"
        except (OSError, http.client.HTTPException) as error:
            client.close()              # the next request connects anew
            why = repr(error)
        pause = pause_of(answer, attempt)
        if time.monotonic() + pause - arrived > GIVE_UP:
            break
        print(f"{batch_id}: {why}, again in {pause:.1f} s", file=sys.stderr, flush=True)
        time.sleep(pause)
        attempt += 1
    return False


def serve(customer, address):
    """One customer's thread: its batches in order, over one connection."""
    url = urllib.parse.urlsplit(address)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    client = kind(url.netloc, timeout=TIMEOUT)
    path = (url.path or "/") + ("?" + url.query if url.query else "")
    line = lines[customer]
    while True:
        with lock:
            if not line and len(lines) <= PREFETCH:
                lock.wait_for(lambda: line, IDLE)
            if not line:
                del lines[customer]
                client.close()
                return
            tag, properties, body, arrived = line[0]
        taken = deliver(client, path, properties.message_id, body, properties.content_type, arrived)
        settle(tag, None if taken else (properties, body))
        with lock:
            line.popleft()


def on_batch(_channel, method, properties, body):
    customer = (properties.headers or {}).get("x-customer")
    if customer not in addresses:
        settle(method.delivery_tag, (properties, body))
        return
    with lock:
        is_new = customer not in lines
        batch = (method.delivery_tag, properties, body, time.monotonic())
        lines.setdefault(customer, collections.deque()).append(batch)
        lock.notify_all()
    if is_new:
        threading.Thread(target=serve, args=(customer, addresses[customer]), daemon=True).start()


channel.confirm_delivery()
channel.queue_declare(QUEUE, durable=True)
channel.queue_declare(FAILED, durable=True)
channel.queue_bind(QUEUE, "tidegate.out", routing_key="shop")
channel.basic_qos(prefetch_count=PREFETCH)
channel.basic_consume(QUEUE, on_batch)
channel.start_consuming()
