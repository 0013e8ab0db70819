// Sends requests that it is told of on standard input, one JSON object a line, through the JavaScript client.

import { createInterface } from "node:readline";
import { Client } from "../../clients/js/everlog.js";

for await (const line of createInterface({ input: process.stdin })) {
  const { id, url, key, method, path, body, headers } = JSON.parse(line);
  const client = new Client(url, { key: key ?? undefined });
  const options = { headers, body: body === null ? undefined : Buffer.from(body, "base64") };
  client.exchange(method, path, options).then(
    (answer) => console.log(JSON.stringify({ id, ...answer })),
    (error) => console.log(JSON.stringify({ id, failure: String(error) })),
  );
}
