// A reminder in an hour, and how it is taken back: the answer says what became of it. Needs
// github.com/rabbitmq/amqp091-go.
package main

import (
	"context"
	"fmt"
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
	answers, err := channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	check(err)
	publish(channel, amqp.Publishing{
		MessageId: "reminder-17", ContentType: "application/json", DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{"x-delay": int64(3600_000)}, Body: []byte(`{"remind": "pay"}`),
	})
	publish(channel, amqp.Publishing{
		Type: "tidegate.cancel", MessageId: "reminder-17",
		ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "ask-1",
	})
	end := time.After(10 * time.Second)
	for {
		select {
		case answer := <-answers:
			if answer.CorrelationId == "ask-1" { // it may come twice
				fmt.Println(string(answer.Body))
				return
			}
		case <-end:
			log.Fatal("no answer: ask again")
		}
	}
}

func publish(channel *amqp.Channel, message amqp.Publishing) {
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	check(channel.PublishWithContext(limit, "tidegate.in", "shop", true, false, message))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
