// One reminder in two seconds, another at a moment. Needs amqplib.
const amqp = require("amqplib");

async function main() {
  const connection = await amqp.connect("amqp://guest:guest@127.0.0.1:5672/%2f");
  const channel = await connection.createConfirmChannel();
  const moment = new Date(Date.now() + 3000);
  for (const [name, when] of [["soon", { "x-delay": 2000 }], ["later", { "x-deliver-at": moment.toISOString() }]]) {
    channel.publish("tidegate.in", "shop", Buffer.from('{"remind": "pay"}'), {
      messageId: `reminder-${name}`, contentType: "application/json", persistent: true, mandatory: true, headers: when,
    });
  }
  await channel.waitForConfirms(); // throws if the broker does not take one
  await connection.close();
}

main();
