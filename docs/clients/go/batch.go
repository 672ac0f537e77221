// Three messages for one customer, which arrive as one batch; then three in one message. Needs
// github.com/rabbitmq/amqp091-go.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type order struct {
	Order int `json:"order"`
}

type entry struct {
	Customer string `json:"customer"`
	ID       string `json:"id"`
	Payload  order  `json:"payload"`
}

func main() {
	connection, err := amqp.Dial("amqp://guest:guest@127.0.0.1:5672/%2f")
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	check(channel.Confirm(false))
	for n := 1; n <= 3; n++ {
		publish(channel, order{n}, amqp.Publishing{
			MessageId: fmt.Sprintf("order-%d", n), ContentType: "application/json",
			Headers: amqp.Table{"x-customer": "anna"},
		})
	}
	var entries []entry
	for n := 4; n <= 6; n++ {
		entries = append(entries, entry{"ben", fmt.Sprintf("order-%d", n), order{n}})
	}
	publish(channel, entries, amqp.Publishing{ContentType: "application/vnd.tidegate+json"})
}

func publish(channel *amqp.Channel, body any, message amqp.Publishing) {
	var err error
	message.Body, err = json.Marshal(body)
	check(err)
	message.DeliveryMode = amqp.Persistent
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(
		limit, "tidegate.in", "shop", true, false, message)
	check(err)
	if !confirm.Wait() {
		log.Fatal("it was not taken")
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
