// Three messages for one customer, which arrive as one batch; then three in one message. Needs amqplib.
const amqp = require("amqplib");

async function main() {
  const connection = await amqp.connect("amqp://guest:guest@127.0.0.1:5672/%2f");
  const channel = await connection.createConfirmChannel();
  for (const n of [1, 2, 3]) {
    channel.publish("tidegate.in", "shop", Buffer.from(JSON.stringify({ order: n })), {
      messageId: `order-${n}`, contentType: "application/json", persistent: true, mandatory: true,
      headers: { "x-customer": "anna" },
    });
  }
  const entries = [4, 5, 6].map((n) => ({ customer: "ben", id: `order-${n}`, payload: { order: n } }));
  channel.publish("tidegate.in", "shop", Buffer.from(JSON.stringify(entries)), {
    contentType: "application/vnd.tidegate+json", persistent: true, mandatory: true,
  });
  await channel.waitForConfirms();
  await connection.close();
}

main();
