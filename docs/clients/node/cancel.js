// A reminder in an hour, and how it is taken back: the answer says what became of it. Needs amqplib.
const amqp = require("amqplib");

async function main() {
  const connection = await amqp.connect("amqp://guest:guest@127.0.0.1:5672/%2f");
  const channel = await connection.createChannel();
  const answered = new Promise((resolve) => {
    setTimeout(() => resolve("no answer: ask again"), 10000).unref();
    channel.consume("amq.rabbitmq.reply-to", (answer) => {
      if (answer.properties.correlationId === "ask-1") resolve(answer.content.toString()); // it may come twice
    }, { noAck: true });
  });
  channel.publish("tidegate.in", "shop", Buffer.from('{"remind": "pay"}'), {
    messageId: "reminder-17", contentType: "application/json", persistent: true, headers: { "x-delay": 3600000 },
  });
  channel.publish("tidegate.in", "shop", Buffer.alloc(0), {
    type: "tidegate.cancel", messageId: "reminder-17", replyTo: "amq.rabbitmq.reply-to", correlationId: "ask-1",
  });
  console.log(await answered);
  await connection.close();
}

main();
