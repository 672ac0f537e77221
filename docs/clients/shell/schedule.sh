#!/bin/sh
# One reminder in two seconds, another at a moment. Needs amqp-tools.
set -eu
url=amqp://guest:guest@127.0.0.1:5672/%2f

amqp-publish -u "$url" -e tidegate.in -r shop -p -C application/vnd.tidegate+json \
    -b '{"id": "reminder-soon", "delay_ms": 2000, "payload": {"remind": "pay"}}'
moment=$(date -u -d '+3 seconds' +%Y-%m-%dT%H:%M:%SZ)
amqp-publish -u "$url" -e tidegate.in -r shop -p -C application/vnd.tidegate+json \
    -b '{"id": "reminder-later", "deliver_at": "'"$moment"'", "payload": {"remind": "pay"}}'
