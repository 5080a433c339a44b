#!/usr/bin/env node
// npm `ali-ons` (RocketMQ 4.x in JavaScript) for dledger-jepsen: sends or consumes until its input ends. It speaks as
// cpp_worker.py does.
//
//   node node_worker.mjs produce --namesrv H:P --home DIR
//   node node_worker.mjs consume --namesrv H:P --home DIR --group G --topics T U
//
// Its messages have no UNIQ_KEY, so nobody could know one again: each is sent once, and what fails is unknown. Exit
// status 1: something threw that nobody catches in it; standard error has it.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const BACK_OFF_MS = 1000;
const installed = createRequire(new URL('../../.interop/node/', import.meta.url));
const ons = installed('ali-ons');
const Route = installed('ali-ons/lib/producer/topic_publish_info');

// The library sends to queues in turn. One send is under way at a time, and `wanted` is the queue of that one.
const inTurn = Route.prototype.selectOneMessageQueue;
let wanted = null;
Route.prototype.selectOneMessageQueue = function (...given) {
  if (wanted === null) return inTurn.apply(this, given);
  return this.messageQueueList.find(each => Number(each.queueId) === wanted) || null;
};

const emit = fields => fs.writeSync(1, JSON.stringify(fields) + '\n');

function readArguments() {
  const options = {};
  let values = [];
  for (const word of process.argv.slice(3)) {
    if (word.startsWith('--')) options[word.slice(2)] = values = [];
    else values.push(word);
  }
  return options;
}

// `quick`: what the library does every five to thirty seconds by itself. A run would be over before it had looked for
// the new leader.
function clientOptions(options) {
  const quick = { pollNameServerInteval: 1000, heartbeatBrokerInterval: 1000, rebalanceInterval: 1000,
    persistConsumerOffsetInterval: 1000 };
  const log = (...words) => process.stderr.write(words.map(String).join(' ') + '\n');
  return { ...quick, nameSrv: options.namesrv[0].split(';'),
    httpclient: { request() { throw new Error('there is a name server, nobody needs to be asked for one'); } },
    logger: { info() {}, debug() {}, warn: log, error: log } };
}

async function produce(options) {
  const producer = new ons.Producer({ ...clientOptions(options), producerGroup: 'chaos-node-producer',
    retryTimesWhenSendFailed: 0 });
  producer.on('error', error => process.stderr.write(`${error}\n`));
  await producer.ready();
  emit({ event: 'started' });
  for await (const line of createInterface({ input: process.stdin })) {
    const { key, topic, queue, body } = JSON.parse(line);
    const message = new ons.Message(topic, Buffer.from(body));
    delete message.properties.TAGS; // else it sends the text "null"
    wanted = queue;
    try {
      const result = await producer.send(message);
      if (result.sendStatus === 'SEND_OK') {
        emit({ event: 'ack', key, offset: Number(result.queueOffset) });
      } else {
        emit({ event: 'unknown', key, text: `stored with ${result.sendStatus}` });
      }
    } catch (error) {
      emit({ event: 'unknown', key, text: String(error).slice(0, 200) });
      await sleep(BACK_OFF_MS);
    }
  }
}

async function consume(options) {
  const consumer = new ons.Consumer({ ...clientOptions(options), consumerGroup: options.group[0],
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', error => process.stderr.write(`${error}\n`));
  for (const topic of options.topics) {
    consumer.subscribe(topic, '*', async message => {
      emit({ event: 'receive', topic: message.topic, queue: Number(message.queueId), offset: Number(message.queueOffset),
        body: String(message.body ?? ''), uniq: (message.properties || {}).UNIQ_KEY || '' });
    });
  }
  await consumer.ready();
  emit({ event: 'started' });
  for await (const _ of createInterface({ input: process.stdin })) continue;
}

process.on('unhandledRejection', error => process.stderr.write(`nobody caught: ${error}\n`));
await (process.argv[2] === 'produce' ? produce : consume)(readArguments());
process.exit(0); // it keeps timers and a producer of its own alive
