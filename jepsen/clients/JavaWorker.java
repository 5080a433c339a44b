import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's Java client for dledger-jepsen: sends or consumes until its input ends. It speaks as cpp_worker.py does.
 *
 *     java -cp ... JavaWorker produce --namesrv H:P --home DIR
 *     java -cp ... JavaWorker consume --namesrv H:P --home DIR --group G --topics T U
 *
 * A send that fails is made again with the same Message object, and so under the same UNIQ_KEY, as applications do.
 */
public final class JavaWorker {
    private static final int TRIES = 3;
    private static final long BACK_OFF_MS = 1000;
    private static final PrintStream OUT = System.out;

    public static void main(String[] args) throws Exception {
        Map<String, List<String>> options = new HashMap<>();
        String name = "";
        for (String word : args) {
            if (word.startsWith("--")) {
                options.put(name = word, new ArrayList<>());
            } else {
                options.computeIfAbsent(name, unused -> new ArrayList<>()).add(word);
            }
        }
        System.setProperty("user.home", options.get("--home").get(0)); // the library logs below it
        String namesrv = options.get("--namesrv").get(0);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (args[0].equals("produce")) {
            produce(namesrv, input);
        } else {
            consume(namesrv, options.get("--group").get(0), options.get("--topics"), input);
        }
        Runtime.getRuntime().halt(0); // some of its threads are no daemons; everything that counts is printed
    }

    private static void produce(String namesrv, BufferedReader input) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("chaos-java-producer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        emit("event", "started");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            Message message = new Message(asked.getString("topic"), asked.getString("body").getBytes(StandardCharsets.UTF_8));
            int queueId = asked.getIntValue("queue");
            Object failure = "";
            boolean isDone = false;
            for (int tries = 0; tries < TRIES && !isDone; tries++) {
                try {
                    SendResult result = producer.send(message, (queues, sent, chosen) -> withId(queues, queueId), null);
                    failure = "stored with " + result.getSendStatus();
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        emit("event", "ack", "key", asked.get("key"), "offset", result.getQueueOffset());
                        isDone = true;
                    }
                } catch (Exception error) {
                    failure = error;
                    Thread.sleep(BACK_OFF_MS);
                }
            }
            if (!isDone) {
                emit("event", "unknown", "key", asked.get("key"), "text", String.valueOf(failure));
            }
        }
    }

    private static MessageQueue withId(List<MessageQueue> queues, int queueId) {
        for (MessageQueue queue : queues) {
            if (queue.getQueueId() == queueId) {
                return queue;
            }
        }
        throw new IllegalStateException("queue " + queueId + " is not in the route");
    }

    private static void consume(String namesrv, String group, List<String> topics, BufferedReader input) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        for (String topic : topics) {
            consumer.subscribe(topic, "*");
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                emit("event", "receive", "topic", message.getTopic(), "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(), "body", new String(message.getBody(), StandardCharsets.UTF_8),
                    "uniq", message.getProperty("UNIQ_KEY"));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        emit("event", "started");
        while (input.readLine() != null) {
            continue;
        }
    }

    private static void emit(Object... pairs) {
        Map<String, Object> row = new LinkedHashMap<>();
        for (int k = 0; k < pairs.length; k += 2) {
            row.put((String) pairs[k], pairs[k + 1]);
        }
        synchronized (OUT) {
            OUT.println(JSON.toJSONString(row));
            OUT.flush();
        }
    }
}
