// BullMQ with the same work: `node bullmq.cjs work | bulk COUNT DATA | latency COUNT`, on the server of BENCH_PEER_URL.
// A hundred jobs at once, finished ones removed, as the other queues here keep no results.
"use strict";

const { Queue, Worker } = require("bullmq");
const { Redis } = require("ioredis");

const URL = process.env.BENCH_PEER_URL;
const QUEUE = "bench";
const BULK = 1000;
const CONCURRENCY = 100;

const connect = () => new Redis(URL, { maxRetriesPerRequest: null });
const makeQueue = () => new Queue(QUEUE, { connection: connect(), defaultJobOptions: { removeOnComplete: true } });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function work() {
  const server = connect();
  const run = async (job) => {
    if (job.name === "stamp") {
      await server.lpush("stamps", String(process.hrtime.bigint() - BigInt(job.data)));
    }
  };
  return new Worker(QUEUE, run, { connection: connect(), concurrency: CONCURRENCY });
}

// Prints the jobs a second that addBulk stored; the queue is filled by it.
async function bulk(count, data) {
  const queue = makeQueue();
  const add = (jobs) => queue.addBulk(Array.from({ length: jobs }, () => ({ name: "noop", data })));
  await add(BULK); // compiled by now
  await queue.obliterate({ force: true });
  const began = process.hrtime.bigint();
  for (let left = count; left > 0; left -= BULK) await add(Math.min(BULK, left));
  console.log((count * 1e9) / Number(process.hrtime.bigint() - began));
  process.exit(0);
}

// Prints the milliseconds from add to start of each job; the worker, another process, was idle before each.
async function latency(count) {
  const queue = makeQueue();
  const server = connect();
  for (let number = 0; number <= count; number += 1) {
    await pause(20 + 40 * Math.random());
    await queue.add("stamp", String(process.hrtime.bigint()));
    const [, took] = await server.blpop("stamps", 30);
    if (number) console.log(Number(took) / 1e6); // the first waited for the worker to start
  }
  process.exit(0);
}

const [task, count, data] = process.argv.slice(2);
({ work, bulk: () => bulk(Number(count), data), latency: () => latency(Number(count)) })[task]();
