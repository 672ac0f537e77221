// Consumes batches and drops repeats by item id. Needs github.com/rabbitmq/amqp091-go.
package main

import (
	"encoding/json"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"
)

type batch struct {
	Customer *string `json:"customer"`
	Items    []struct {
		ID      string          `json:"id"`
		Payload json.RawMessage `json:"payload"`
	} `json:"items"`
}

func main() {
	connection, err := amqp.Dial("amqp://guest:guest@127.0.0.1:5672/%2f")
	check(err)
	channel, err := connection.Channel()
	check(err)
	_, err = channel.QueueDeclare("shop-batches", true, false, false, false, nil)
	check(err)
	check(channel.QueueBind("shop-batches", "shop", "tidegate.out", false, nil))
	check(channel.Qos(10, 0, false))
	deliveries, err := channel.Consume("shop-batches", "", false, false, false, false, nil)
	check(err)
	seen := map[string]bool{} // in memory: keep the ids where the work is kept, and forget them by age
	for delivery := range deliveries {
		var one batch
		check(json.Unmarshal(delivery.Body, &one))
		customer := "-"
		if one.Customer != nil {
			customer = *one.Customer
		}
		for _, item := range one.Items {
			if !seen[item.ID] {
				fmt.Println(customer, item.ID, string(item.Payload))
			}
			seen[item.ID] = true
		}
		check(delivery.Ack(false)) // after the work, never before
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
