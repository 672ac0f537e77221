#!/bin/sh
# A reminder in an hour, and how it is taken back. amqp-publish sends no commands (it sets no type): HTTP does.
# Needs amqp-tools and curl.
set -eu
url=amqp://guest:guest@127.0.0.1:5672/%2f
admin=http://127.0.0.1:9380

amqp-publish -u "$url" -e tidegate.in -r shop -p -C application/vnd.tidegate+json \
    -b '{"id": "reminder-17", "delay_ms": 3600000, "payload": {"remind": "pay"}}'
# By HTTP it may overtake the request, which is still on its way through the broker.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    answer=$(curl -s -m 10 -X DELETE "$admin/api/v1/items/shop/reminder-17")
    case $answer in *unknown*) sleep 0.5 ;; *) break ;; esac
done
echo "$answer"
