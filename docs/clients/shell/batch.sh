#!/bin/sh
# Three messages for one customer, which arrive as one batch; then three in one message. Needs amqp-tools.
# amqp-publish sets no message id: with one, it takes the envelope.
set -eu
url=amqp://guest:guest@127.0.0.1:5672/%2f

for n in 1 2 3; do
    amqp-publish -u "$url" -e tidegate.in -r shop -p -C application/vnd.tidegate+json \
        -b '{"customer": "anna", "id": "order-'$n'", "payload": {"order": '$n'}}'
done
amqp-publish -u "$url" -e tidegate.in -r shop -p -C application/vnd.tidegate+json -b '[
    {"customer": "ben", "id": "order-4", "payload": {"order": 4}},
    {"customer": "ben", "id": "order-5", "payload": {"order": 5}},
    {"customer": "ben", "id": "order-6", "payload": {"order": 6}}]'
