import java.io.File;
import java.io.FileWriter;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;

/**
 * Makes a store of Apache RocketMQ with everything that an import has to deal with, and writes down what that broker
 * itself shows of it: `StoreMaker CONF FOLDER NAMESRV_PORT RELEASE`. FOLDER gets `expected.json`. CONF has at least
 * brokerName=b, brokerIP1=127.0.0.1, namesrvAddr=127.0.0.1:NAMESRV_PORT, storePathRootDir, storePathCommitLog,
 * mappedFileSizeCommitLog=8192, mappedFileSizeConsumeQueue=20000, cleanResourceInterval=1000, deleteWhen=25,
 * transactionCheckInterval=3600000, brokerFastFailureEnable=false; for 5.3 recallMessageEnable=true.
 */
public class StoreMaker {
    static BrokerController broker;
    static DefaultMQProducer producer;

    interface Condition {
        boolean holds() throws Exception;
    }

    static void waitFor(String what, Condition condition) throws Exception {
        long end = System.currentTimeMillis() + 180_000;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("after 180 s not yet: " + what);
            }
            Thread.sleep(200);
        }
        System.out.println("done: " + what);
    }

    static void topic(String name, int queues) {
        TopicConfig config = new TopicConfig(name, queues, queues, 6);
        broker.getTopicConfigManager().updateTopicConfig(config);
        broker.registerBrokerAll(true, false, true);
    }

    static byte[] body(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static SendResult send(String topic, int queue, String text) throws Exception {
        Message message = new Message(topic, "tag" + queue, "key-" + text, body(text));
        message.putUserProperty("colour", "blau-" + queue);
        return producer.send(message, new MessageQueue(topic, "b", queue));
    }

    static void deleteTopic(String name) throws Exception {
        broker.getTopicConfigManager().deleteTopicConfig(name);
        MessageStore store = broker.getMessageStore();
        try {
            Method method = store.getClass().getMethod("deleteTopics", java.util.Set.class);
            method.invoke(store, Collections.singleton(name));
        } catch (NoSuchMethodException old) {
            Method method = store.getClass().getMethod("cleanUnusedTopic", java.util.Set.class);
            method.invoke(store, new HashSet<>(broker.getTopicConfigManager().getTopicConfigTable().keySet()));
        }
    }

    static long max(String topic, int queue) throws Exception {
        return broker.getMessageStore().getMaxOffsetInQueue(topic, queue);
    }

    static long min(String topic, int queue) throws Exception {
        return broker.getMessageStore().getMinOffsetInQueue(topic, queue);
    }

    static void consume(String group, String topic, int count, int retries, Condition failed) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        AtomicInteger seen = new AtomicInteger();
        consumer.setNamesrvAddr(producer.getNamesrvAddr());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(retries);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.addAndGet(messages.size());
            return failed != null ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        waitFor(group + " consumes " + count + " of " + topic, () -> seen.get() >= count);
        if (failed != null) {
            waitFor(group + " has given back what it got", failed);
        }
        consumer.shutdown();
    }

    static void transactions() throws Exception {
        TransactionMQProducer transactional = new TransactionMQProducer("p-transactions");
        transactional.setNamesrvAddr(producer.getNamesrvAddr());
        transactional.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object wanted) {
                return (LocalTransactionState) wanted;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        transactional.start();
        for (int i = 0; i < 6; i++) {
            LocalTransactionState[] states = LocalTransactionState.values();
            Message message = new Message("orders", "tx", "tx-" + i, body("transaction " + states[i % 3] + " " + i));
            transactional.sendMessageInTransaction(message, states[i % 3]);
        }
        waitFor("two transactions are committed", () -> committed() == 2);
        Thread.sleep(4000); // the ends are written down every 3 s
        transactional.shutdown();
    }

    static int committed() throws Exception {
        int count = 0;
        for (int queue = 0; queue < 4; queue++) {
            for (MessageExt each : all("orders", queue)) {
                count += new String(each.getBody(), StandardCharsets.UTF_8).startsWith("transaction") ? 1 : 0;
            }
        }
        return count;
    }

    static List<MessageExt> all(String topic, int queue) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        long offset = min(topic, queue);
        while (offset < max(topic, queue)) {
            GetMessageResult result = broker.getMessageStore().getMessage("x", topic, queue, offset, 32, null);
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer, true, false);
                if (message != null) { // 4.9 takes offset 0 for the first file, whatever that begins with
                    found.add(message);
                }
            }
            result.release();
            if (result.getNextBeginOffset() <= offset) {
                break;
            }
            offset = result.getNextBeginOffset();
        }
        return found;
    }

    static String expected() throws Exception {
        StringBuilder text = new StringBuilder("{\"queues\": [");
        String comma = "";
        TreeMap<String, TopicConfig> topics = new TreeMap<>(broker.getTopicConfigManager().getTopicConfigTable());
        for (Map.Entry<String, TopicConfig> each : topics.entrySet()) {
            for (int queue = 0; queue < Math.min(32, each.getValue().getReadQueueNums()); queue++) {
                if (max(each.getKey(), queue) <= 0) {
                    continue;
                }
                CRC32 crc = new CRC32();
                int count = 0;
                for (MessageExt message : all(each.getKey(), queue)) {
                    crc.update(message.getBody());
                    count++;
                }
                text.append(comma).append(String.format(
                    "%n[\"%s\", %d, %d, %d, %d, %d]", each.getKey(), queue, min(each.getKey(), queue),
                    max(each.getKey(), queue), count, crc.getValue()));
                comma = ",";
            }
        }
        return text.append("\n]}\n").toString();
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[2]);
        boolean isFive = arguments[3].startsWith("5");
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(port);
        NamesrvController names = new NamesrvController(new NamesrvConfig(), netty);
        names.initialize();
        names.start();
        broker = BrokerStartup.createBrokerController(new String[] {"-c", arguments[0]});
        broker.start();
        producer = new DefaultMQProducer("p-plain");
        producer.setNamesrvAddr("127.0.0.1:" + port);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        topic("bad", 1);
        topic("first", 1);
        waitFor("the broker takes messages", StoreMaker::takesMessages);
        topic("old", 2);
        topic("orders", 4);
        topic("again", 1);
        topic("gone", 1);
        for (int i = 0; i < 160; i++) {
            boolean isOld = i < 60 && i % 2 == 0;
            send(isOld ? "old" : "orders", i / 2 % (isOld ? 2 : 4), "early " + i + "x".repeat(500));
        }
        if (!broker.getMessageStoreConfig().isEnableDLegerCommitLog()) { // that one deletes at its own times
            broker.getMessageStoreConfig().setFileReservedTime(0);
            broker.getMessageStore().executeDeleteFilesManually();
            waitFor("the beginning is deleted", () -> min("orders", 0) > 0 && broker.getMessageStore().getMinPhyOffset() > 60_000);
        }
        broker.getMessageStoreConfig().setFileReservedTime(72);
        for (int i = 0; i < 5; i++) {
            send("again", 0, "first " + i);
            send("gone", 0, "gone " + i);
            send("bad", 0, "bad " + i);
        }
        deleteTopic("again");
        deleteTopic("gone");
        topic("again", 1);
        for (int i = 0; i < 3; i++) {
            send("again", 0, "second " + i);
        }
        for (int i = 0; i < 40; i++) {
            send("orders", i % 4, "order " + i);
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(new Message("orders", "batch", "batch-" + i, body("batched " + i)));
        }
        producer.send(batch, new MessageQueue("orders", "b", 1));
        producer.send(new Message("orders", "large", "large", body("large ".repeat(2000))), new MessageQueue("orders", "b", 2));
        for (int level : new int[] {1, 18, 18, 17}) {
            Message message = new Message("orders", "delayed", "delayed", body("delayed by level " + level));
            message.setDelayTimeLevel(level);
            producer.send(message);
        }
        transactions();
        if (isFive) {
            timers();
        }
        consume("g-orders", "orders", 30, -1, null);
        consume("g-retries", "bad", 5, -1, () -> max("SCHEDULE_TOPIC_XXXX", 2) == 5);
        consume("g-dead", "bad", 5, 0, () -> max("%DLQ%g-dead", 0) == 5);
        for (int i = 0; i < 8; i++) {
            send("orders", i % 4, "late " + i);
        }
        waitFor("what was given back comes again", () -> max("%RETRY%g-retries", 0) == 5);
        Thread.sleep(15_000);
        String text = expected();
        producer.shutdown();
        broker.shutdown();
        names.shutdown();
        try (FileWriter file = new FileWriter(new File(arguments[1], "expected.json"))) {
            file.write(text);
        }
        System.out.println("made");
        System.exit(0);
    }

    static boolean takesMessages() {
        try {
            return send("first", 0, "first") != null;
        } catch (Exception notYet) {
            return false;
        }
    }

    static void timers() throws Exception {
        long now = System.currentTimeMillis();
        for (int seconds : new int[] {2, 3600, 7200, 7201}) {
            Message message = new Message("orders", "timed", "timed-" + seconds, body("timed by " + seconds));
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", String.valueOf(now + seconds * 1000L));
            SendResult sent = producer.send(message);
            if (seconds == 7201) {
                Object handle = sent.getClass().getMethod("getRecallHandle").invoke(sent);
                producer.getClass().getMethod("recallMessage", String.class, String.class).invoke(producer, "orders", handle);
            }
        }
    }
}
