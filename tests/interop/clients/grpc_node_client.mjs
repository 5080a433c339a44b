#!/usr/bin/env node
// Command line around npm `rocketmq-client-nodejs` 1.0.8, RocketMQ 5's gRPC client.
//
//   grpc_node_client.mjs produce --namesrv PROXY --topic T --count N [...]
//   grpc_node_client.mjs consume --namesrv PROXY --topic T --group G --count N --timeout S [...]
//
// PROXY is the endpoint of a proxy, host:port. One JSON object per line on stdout; exactly one has "summary": true.
// Exit status: 0 all done, 1 short or failed, 2 bad usage. The options are those of GrpcJavaClient.java.
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = createRequire(import.meta.url)('rocketmq-client-nodejs'); // through NODE_PATH
const COMMIT = 1;
const SQL = 2;
const OPTIONS = {
  namesrv: { type: 'string' },
  topic: { type: 'string' },
  count: { type: 'string' },
  group: { type: 'string' },
  timeout: { type: 'string' },
  plain: { type: 'boolean', default: false },
  credentials: { type: 'string' },
  linger: { type: 'string', default: '0' },
  // produce
  'interval-ms': { type: 'string', default: '0' },
  'keep-going': { type: 'boolean', default: false },
  'message-groups': { type: 'string', default: '0' },
  'delay-s': { type: 'string' },
  tags: { type: 'string' },
  transaction: { type: 'boolean', default: false },
  // consume
  expression: { type: 'string', default: '*' },
  sql: { type: 'string' },
  'reconsume-first': { type: 'string', default: '0' },
  simple: { type: 'boolean', default: false },
};

const emit = obj => fs.writeSync(1, JSON.stringify(obj) + '\n');
const sha1 = buf => createHash('sha1').update(buf).digest('hex');
const text = error => String(error).slice(0, 400);

function usage(why) {
  process.stderr.write(`${why}\nusage: grpc_node_client.mjs produce|consume --namesrv H:P --topic T --count N [...]\n`);
  process.exit(2);
}

function readArgs() {
  const operation = process.argv[2];
  if (operation !== 'produce' && operation !== 'consume') usage('first argument: produce or consume');
  let args;
  try {
    args = parseArgs({ args: process.argv.slice(3), options: OPTIONS }).values;
  } catch (error) {
    usage(error.message);
  }
  for (const name of [ 'namesrv', 'topic', 'count' ]) if (!args[name]) usage(`--${name} is required`);
  if (operation === 'consume' && !(args.group && args.timeout)) usage('consume needs --group and --timeout');
  return { operation, ...args };
}

function configuration(args) {
  const say = () => {};
  const found = {
    endpoints: args.namesrv, namespace: '', requestTimeout: 20_000, sslEnabled: !args.plain,
    logger: { debug: say, info: say, warn: say, error: say, close: say }, // its own is a file below HOME
  };
  if (args.credentials) {
    const keys = Object.fromEntries(fs.readFileSync(args.credentials, 'utf8').trim().split('\n')
      .map(line => line.split(':').map(part => part.trim())));
    found.sessionCredentials = { accessKey: keys.accessKey, accessSecret: keys.secretKey };
  }
  return found;
}

async function produce(args) {
  const checker = {
    async check(message) {
      emit({ event: 'checked', body_sha1: sha1(message.body) });
      return COMMIT;
    },
  };
  const producer = new Producer({
    ...configuration(args), topics: [ args.topic ], ...(args.transaction ? { checker } : {}),
  });
  await producer.startup();
  const tags = args.tags ? args.tags.split(',') : [];
  let failed = 0;
  for (let number = 0; number < Number(args.count); number++) {
    const body = Buffer.from(`grpc-${number}`);
    const message = {
      topic: args.topic, body, keys: [ `k${number}` ], properties: new Map([[ 'number', String(number) ]]),
    };
    if (tags.length) message.tag = tags[number % tags.length];
    if (Number(args['message-groups'])) message.messageGroup = `g${number % Number(args['message-groups'])}`;
    if (args['delay-s']) message.deliveryTimestamp = new Date(Date.now() + 1000 * Number(args['delay-s']));
    const row = { i: number, body_sha1: sha1(body) };
    try {
      let receipt;
      if (args.transaction) {
        const transaction = producer.beginTransaction();
        receipt = await producer.send(message, transaction);
        const end = number % 3; // one is committed, the next rolled back, the third is asked about
        row.end = [ 'commit', 'rollback', 'open' ][end];
        if (end === 0) await transaction.commit();
        if (end === 1) await transaction.rollback();
      } else {
        receipt = await producer.send(message);
      }
      emit({ status: 'SEND_OK', msg_id: receipt.messageId, ...row });
    } catch (error) {
      failed++;
      emit({ status: 'ERROR', error: text(error), ...row });
      if (!args['keep-going']) break;
    }
    await sleep(Number(args['interval-ms']));
  }
  emit({ summary: true, failed });
  if (args.transaction) await sleep(1000 * Number(args.linger));
  await producer.shutdown();
  return failed;
}

async function consume(args) {
  const later = Number(args['reconsume-first']);
  const wanted = Number(args.count);
  let seen = 0;
  const isDone = () => seen - later >= wanted;
  const consumed = message => {
    const isLater = ++seen <= later;
    emit({
      body_sha1: sha1(message.body), msg_id: message.messageId, keys: message.keys, group: message.messageGroup ?? null,
      tag: message.tag ?? null, properties: Object.fromEntries(message.properties ?? []),
      reconsume_times: message.deliveryAttempt - 1, early_ms: message.deliveryTimestamp ? message.deliveryTimestamp - Date.now() : null,
      body: message.body.toString(), action: isLater ? 'later' : 'ok',
    });
    return isLater ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  };
  const filter = args.sql ? new FilterExpression(args.sql, SQL) : new FilterExpression(args.expression);
  const options = {
    ...configuration(args), consumerGroup: args.group, subscriptions: new Map([[ args.topic, filter ]]),
  };
  const deadline = Date.now() + 1000 * Number(args.timeout);
  if (args.simple) {
    const consumer = new SimpleConsumer({ ...options, awaitDuration: 5000 });
    await consumer.startup();
    emit({ event: 'started' });
    while (!isDone() && Date.now() < deadline) {
      for (const message of await consumer.receive(16, 30_000)) {
        if (consumed(message) === ConsumeResult.SUCCESS) await consumer.ack(message);
        else await consumer.changeInvisibleDuration(message, 1000);
      }
    }
    await consumer.shutdown();
  } else {
    const consumer = new PushConsumer({ ...options, messageListener: { consume: async message => consumed(message) } });
    await consumer.startup();
    emit({ event: 'started' });
    while (!isDone() && Date.now() < deadline) await sleep(20);
    await sleep(1000 * Number(args.linger));
  }
  emit({ summary: true, accepted: seen - later });
  return isDone() ? 0 : 1;
}

const args = readArgs();
let status = 1;
try {
  status = await (args.operation === 'produce' ? produce(args) : consume(args)) ? 1 : 0;
} catch (error) {
  emit({ summary: true, op: args.operation, error: text(error) });
}
process.exit(status);
