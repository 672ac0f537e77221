// Consumes batches and drops repeats by item id. Needs amqplib.
const amqp = require("amqplib");

const seen = new Set(); // in memory: keep the ids where the work is kept, and forget them by age

async function main() {
  const connection = await amqp.connect("amqp://guest:guest@127.0.0.1:5672/%2f");
  const channel = await connection.createChannel();
  await channel.assertQueue("shop-batches", { durable: true });
  await channel.bindQueue("shop-batches", "tidegate.out", "shop");
  await channel.prefetch(10);
  await channel.consume("shop-batches", (message) => {
    const batch = JSON.parse(message.content.toString());
    for (const item of batch.items) {
      if (!seen.has(item.id)) console.log(batch.customer, item.id, JSON.stringify(item.payload));
      seen.add(item.id);
    }
    channel.ack(message); // after the work, never before
  });
}

main();
