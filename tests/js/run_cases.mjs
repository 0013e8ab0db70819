// Runs the cases of cases.mjs against the server named by the first argument and prints what came of each.

import * as everlog from "../../clients/js/everlog.js";
import { CASES } from "./cases.mjs";

const [url, key] = process.argv.slice(2);
for (const [name, run] of Object.entries(CASES)) {
  const client = new everlog.Client(url, { key });
  const failure = await run({ ...everlog, client, topic: name }).then(() => null, (error) => error.stack);
  console.log(JSON.stringify({ name, failure }));
}
