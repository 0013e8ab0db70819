// Watches the topic `orders` and prints each record's seq; ends after the number of records in the second argument.

import { Client } from "../../clients/js/everlog.js";

const [url, count] = process.argv.slice(2);
let left = Number(count);
for await (const event of new Client(url).watch({ orders: "earliest" })) {
  for (const record of event.records ?? []) {
    console.log(record.$seq);
    left--;
  }
  if (left <= 0) break;
}
