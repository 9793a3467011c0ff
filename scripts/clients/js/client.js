// The kafkajs client of the matrix. Command line: see ../common.py. It reads in a group of its own, as kafkajs has no other way.
'use strict';
const fs = require('node:fs');
const { randomUUID } = require('node:crypto');
const { parseArgs, isDeepStrictEqual } = require('node:util');
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs');
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
const kafkajsVersion = require('kafkajs/package.json').version;

const CONSUME_DEADLINE_MS = 15000;
// With acks=0 nothing says that the bytes have left; a connection closed at once may lose them.
const SETTLE_MS = 300;
// kafkajs makes one batch of what it is given at once.
const BATCH_BYTES = 200000;
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy };
const ACKS = { 0: 0, 1: 1, all: -1 };

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const bytes = (text) => (text === null ? null : Buffer.from(text, 'base64'));

function loadSpecification(path) {
  const lines = fs.readFileSync(path, 'utf8').split('\n').filter(Boolean);
  return lines.map((line) => {
    const { key, value, headers, timestamp } = JSON.parse(line);
    return { key: bytes(key), value: bytes(value), headers: headers.map(([name, data]) => [name, bytes(data)]), timestamp };
  });
}

// A message has an object of headers, and an array where a name comes more than once.
function headersToObject(pairs) {
  const named = {};
  for (const [name, data] of pairs) named[name] = [...(named[name] || []), data];
  return Object.fromEntries(Object.entries(named).map(([name, all]) => [name, all.length === 1 ? all[0] : all]));
}

const headersToPairs = (named) => Object.entries(named || {}).flatMap(([name, data]) => [data].flat().map((one) => [name, one]));

function show(data) {
  return Buffer.isBuffer(data) ? `${data.length} bytes ${JSON.stringify(data.subarray(0, 24).toString('latin1'))}` : JSON.stringify(data);
}

function compare(index, expected, got, offset) {
  const fields = [
    ['offset', offset, Number(got.offset)], ['key', expected.key, got.key], ['value', expected.value, got.value],
    ['headers', expected.headers, headersToPairs(got.headers)],
  ];
  if (expected.timestamp !== null) fields.push(['timestamp', expected.timestamp, Number(got.timestamp)]);
  for (const [field, want, have] of fields) {
    if (!isDeepStrictEqual(want, have)) throw new Error(`record ${index}: ${field}: expected ${show(want)}, read ${show(have)}`);
  }
}

function connection(job) {
  return new Kafka({
    brokers: [job.bootstrap], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 20 },
  });
}

function batches(records, partition) {
  const all = [];
  let size = Infinity;
  for (const { key, value, headers, timestamp } of records) {
    const length = (key || '').length + (value || '').length;
    if (size + length > BATCH_BYTES) {
      all.push([]);
      size = 0;
    }
    size += length;
    const extra = timestamp === null ? {} : { timestamp: String(timestamp) };
    all[all.length - 1].push({ key, value, partition, headers: headersToObject(headers), ...extra });
  }
  return all;
}

async function produce(job) {
  const records = loadSpecification(job.spec);
  const producer = connection(job).producer({ idempotent: job.idempotent, maxInFlightRequests: 1, allowAutoTopicCreation: false });
  await producer.connect();
  try {
    let next;
    for (const messages of batches(records, job.partition)) {
      const done = await producer.send({ topic: job.topic, acks: ACKS[job.acks], compression: CODECS[job.codec], messages });
      if (job.acks === '0') continue;
      const base = Number(done[0].baseOffset);
      if (next !== undefined && base !== next) throw new Error(`offsets are not one run: ${base} after ${next - 1}`);
      next = base + messages.length;
    }
    if (job.acks === '0') await pause(SETTLE_MS);
  } finally {
    await producer.disconnect();
  }
  return `${records.length} records`;
}

// Ends when all records were seen or one is not what it must be; what `run` of kafkajs throws itself it would try again.
function read(consumer, job, expected, first) {
  return new Promise((resolve, reject) => {
    let index = 0;
    const timer = setTimeout(() => reject(new Error(`${index} of ${expected.length} records within ${CONSUME_DEADLINE_MS} ms`)), CONSUME_DEADLINE_MS);
    const end = (settle, with_) => {
      clearTimeout(timer);
      settle(with_);
    };
    consumer.on(consumer.events.CRASH, ({ payload }) => end(reject, payload.error));
    const eachMessage = async ({ partition, message }) => {
      try {
        if (partition !== job.partition) throw new Error(`a record in partition ${partition}`);
        if (index >= expected.length) throw new Error(`one record more than the ${expected.length} expected, at offset ${message.offset}`);
        compare(index, expected[index], message, first + index);
        index += 1;
        if (index === expected.length) end(resolve);
      } catch (error) {
        end(reject, error);
      }
    };
    consumer.run({ autoCommit: false, eachMessage }).catch((error) => end(reject, error));
    if (first > 0) consumer.seek({ topic: job.topic, partition: job.partition, offset: String(first) });
  });
}

async function consume(job) {
  const expected = loadSpecification(job.expect);
  const first = job.from && job.from !== 'beginning' ? Number(job.from) : 0;
  const kafka = connection(job);
  const consumer = kafka.consumer({ groupId: `matrix-${randomUUID()}`, maxWaitTimeInMs: 50, allowAutoTopicCreation: false });
  const admin = kafka.admin();
  await consumer.connect();
  try {
    await consumer.subscribe({ topics: [job.topic], fromBeginning: true });
    await read(consumer, job, expected, first);
    await admin.connect();
    const { low, high } = (await admin.fetchTopicOffsets(job.topic)).find(({ partition }) => partition === job.partition);
    if (Number(low) !== 0 || Number(high) !== first + expected.length) {
      throw new Error(`watermarks ${low}..${high}, expected 0..${first + expected.length}`);
    }
  } finally {
    await consumer.disconnect();
    await admin.disconnect();
  }
  return `${expected.length} records`;
}

function jobsOf(words) {
  const text = { type: 'string' };
  const names = ['bootstrap', 'topic', 'partition', 'spec', 'codec', 'acks', 'idempotent', 'expect', 'from', 'jobs'];
  const { values, positionals } = parseArgs({ args: words, allowPositionals: true, options: Object.fromEntries(names.map((name) => [name, text])) });
  if (positionals[0] === 'batch') return fs.readFileSync(values.jobs, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
  const defaults = { id: '', codec: 'none', acks: 'all', from: 'beginning' };
  return [{ ...defaults, ...values, action: positionals[0], partition: Number(values.partition || 0), idempotent: values.idempotent === 'true' }];
}

async function main() {
  let good = true;
  for (const job of jobsOf(process.argv.slice(2))) {
    const begin = performance.now();
    const result = { id: job.id, ok: true };
    try {
      result.detail = await { produce, consume }[job.action](job);
    } catch (error) {
      Object.assign(result, { ok: false, detail: String(error.stack || error) });
    }
    good &&= result.ok;
    result.seconds = Math.round(performance.now() - begin) / 1000;
    console.log(JSON.stringify({ ...result, client: `kafkajs ${kafkajsVersion}` }));
  }
  process.exit(good ? 0 : 1);
}

main();
