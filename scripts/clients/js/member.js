// kafkajs as a member of a group. Command line: see ../member.py.
'use strict';
const { parseArgs } = require('node:util');
const { Kafka, logLevel } = require('kafkajs');
const kafkajsVersion = require('kafkajs/package.json').version;

const text = { type: 'string' };
const { values: options } = parseArgs({
  options: { bootstrap: text, topic: text, group: text, protocol: text, 'session-ms': text, instance: text },
});

function emit(event, fields) {
  process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
}

const session = Number(options['session-ms']);
const kafka = new Kafka({
  brokers: [options.bootstrap],
  logLevel: logLevel.WARN,
  logCreator: () => ({ log }) => emit('trouble', { detail: `${log.message} ${log.error || ''}` }),
  retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 60 },
});
const consumer = kafka.consumer({
  groupId: options.group,
  sessionTimeout: session,
  rebalanceTimeout: 60000,
  heartbeatInterval: Math.floor(session / 6),
  maxWaitTimeInMs: 100,
});

async function eachBatch({ batch, resolveOffset, heartbeat, isRunning, isStale }) {
  for (const message of batch.messages) {
    if (!isRunning() || isStale()) return;
    emit('read', { partition: batch.partition, offset: Number(message.offset), value: String(message.value) });
    resolveOffset(message.offset);
  }
  await consumer.commitOffsets([{ topic: batch.topic, partition: batch.partition, offset: String(BigInt(batch.lastOffset()) + 1n) }]);
  await heartbeat();
}

async function main() {
  emit('client', { name: `kafkajs ${kafkajsVersion}` });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    emit('owned', { partitions: payload.memberAssignment[options.topic] || [] });
  });
  consumer.on(consumer.events.REBALANCING, () => emit('owned', { partitions: [] }));
  process.stdin.on('end', async () => {
    await consumer.disconnect();
    process.exit(0);
  });
  process.stdin.resume();
  await consumer.connect();
  await consumer.subscribe({ topics: [options.topic], fromBeginning: true });
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch });
}

main().catch((error) => {
  emit('trouble', { detail: String(error.stack || error) });
  process.exit(1);
});
