// One reminder in two seconds, another at a moment. Needs github.com/rabbitmq/amqp091-go.
package main

import (
	"context"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	connection, err := amqp.Dial("amqp://guest:guest@127.0.0.1:5672/%2f")
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	check(channel.Confirm(false))
	moment := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339Nano)
	publish(channel, "reminder-soon", amqp.Table{"x-delay": int64(2000)})
	publish(channel, "reminder-later", amqp.Table{"x-deliver-at": moment})
}

func publish(channel *amqp.Channel, id string, when amqp.Table) {
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(limit, "tidegate.in", "shop", true, false,
		amqp.Publishing{
			MessageId: id, ContentType: "application/json", DeliveryMode: amqp.Persistent,
			Headers: when, Body: []byte(`{"remind": "pay"}`),
		})
	check(err)
	if !confirm.Wait() { // until then the broker may not have it
		log.Fatalf("%s was not taken", id)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
