// BullMQ on Redis, in Node: a job is in its active list, locked, until it has ended.

import { createRequire } from "node:module";

const [, , folder, url, jobs] = process.argv;
const { Queue, Worker } = createRequire(`${folder}/`)("bullmq");
const text =
  "A guest asks whether breakfast is served before seven on Sundays; answer in Spanish. ".repeat(2);
const { hostname: host, port } = new URL(url);
const connection = { host, port: Number(port) };
const seconds = () => Number(process.hrtime.bigint()) / 1e9;

const queue = new Queue("bench", { connection });
await queue.waitUntilReady();
let began = seconds();
const caller = async () => {
  for (let number = 0; number < jobs / 100; number++) {
    await queue.add("work", { number, text });
  }
};
await Promise.all(Array.from({ length: 100 }, caller));
const enqueue = jobs / (seconds() - began);

let done = 0;
const worker = new Worker("bench", async () => {}, { connection, concurrency: 100, autorun: false });
worker.on("completed", () => {
  done += 1;
  if (done === 1) {
    began = seconds();
  } else if (done === Number(jobs)) {
    console.log(JSON.stringify({ enqueue, drain: (done - 1) / (seconds() - began) }));
    process.exit(0);
  }
});
worker.run();
