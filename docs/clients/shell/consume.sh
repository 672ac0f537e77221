#!/bin/sh
# Consumes batches: each is handed to a command on its standard input, and acked when that exits with 0.
# Needs amqp-tools, and a queue that is bound to the output exchange (here by rabbitmqadmin, once):
#   rabbitmqadmin declare queue --name shop-batches --durable true
#   rabbitmqadmin declare binding --source tidegate.out --destination shop-batches --destination-type queue \
#       --routing-key shop
set -eu
url=amqp://guest:guest@127.0.0.1:5672/%2f

# Repeats are not dropped here: the command has to, by item id.
amqp-consume -u "$url" -q shop-batches -p 1 -- sh -c 'cat; echo'
