import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import java.util.stream.Stream;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Command line around Maven's org.apache.rocketmq:rocketmq-client, 4.x and 5.x.
 *
 *     java -cp ... JavaClient produce --namesrv H:P --topic T --count N [...]
 *     java -cp ... JavaClient consume --namesrv H:P --topic T --group G --count N --timeout S [...]
 *
 * One JSON object per line on stdout; exactly one has "summary": true.
 * Exit status: 0 all done, 1 short or failed, 2 bad usage, 3 the hard deadline fired.
 * The options are those of cpp_client.py, and:
 *   produce --transaction  halves: one is committed, the next rolled back, the third left to the check, which
 *                          commits it, and so on ("transaction" in the line says which)
 *   --api-timeout-ms       what routes, heartbeats and the like may take; the library's own is 3000
 *   --credentials FILE     accessKey and secretKey, as in tools.yml: requests are signed by AclClientRPCHook
 *   --trace-topic T        write records of message trace, to this topic; produce waits --linger seconds for them
 *   produce --steered      it stays until the end of stdin
 *   produce --request      sends are requests, by each of the library's six ways in turn; one is good once its reply,
 *                          which "reply" shows, has come; --send-timeout-ms is how long that may take
 *   consume --reply        answers each message with "re:" and its body; "reply" shows what became of that
 *   consume --sql          a condition on properties, in place of --expression
 *   consume --lite         the library's DefaultLitePullConsumer, with poll
 *   consume --broker-rebalance   the broker says which queues are its own, and whether it pops them (5.x)
 *   consume --steered      a line on stdin starts it, once everything is ready for that; the end of stdin stops it
 */
public final class JavaClient {
    private static final int GRACE_S = 20;
    private static final int WARM_TRIES = 20;
    private static final Set<String> SWITCHES = new HashSet<>(Arrays.asList(
        "orderly", "oneway", "async", "transaction", "keep-going", "steered", "request", "reply", "lite",
        "broker-rebalance"));
    private static final Set<String> OPTIONS = new HashSet<>(Arrays.asList(
        "namesrv", "topic", "count", "group", "timeout", "tag", "key-prefix", "body-size", "body-prefix", "delay-level",
        "batch", "shards", "send-timeout-ms", "api-timeout-ms", "interval-ms", "expression", "sql", "reconsume-first", "linger", "log-dir",
        "credentials", "trace-topic"));
    private static final PrintStream OUT = System.out;

    private final Map<String, String> options;
    private final long began = System.nanoTime();

    private JavaClient(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = parse(args);
        JavaClient client = new JavaClient(options);
        String kept = options.get("log-dir");
        Path home = kept == null ? Files.createTempDirectory("interop-java-") : Files.createDirectories(Path.of(kept));
        System.setProperty("user.home", home.toString()); // the library logs below it
        long hard = (long) (client.number("timeout", 120) + GRACE_S + client.number("linger", 0));
        Thread alarm = new Thread(() -> {
            pause(hard * 1000);
            emit(row("event", "hard_deadline", "seconds", hard));
            Runtime.getRuntime().halt(3);
        });
        alarm.setDaemon(true);
        alarm.start();
        int status = 1;
        try {
            status = args[0].equals("produce") ? client.produce() : client.consume();
        } catch (Exception error) {
            emit(row("summary", true, "client", name(), "op", args[0], "error", text(error)));
        }
        if (kept == null) {
            try (Stream<Path> found = Files.walk(home)) {
                found.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
        }
        OUT.flush();
        Runtime.getRuntime().halt(status); // some of its threads are no daemons
    }

    // --- producing

    private int produce() throws Exception {
        String group = text("group", "interop_java_producer");
        String trace = options.get("trace-topic");
        DefaultMQProducer producer = has("transaction")
            ? new TransactionMQProducer(null, group, hook(), trace != null, trace)
            : new DefaultMQProducer(group, hook(), trace != null, trace);
        configure(producer);
        producer.setSendMsgTimeout((int) number("send-timeout-ms", 3000));
        InTurn listener = new InTurn();
        if (producer instanceof TransactionMQProducer) {
            ((TransactionMQProducer) producer).setTransactionListener(listener);
        }
        producer.start();
        warm(producer);
        Tally tally = new Tally();
        int count = (int) number("count", 0);
        int batch = Math.max(1, (int) number("batch", 1));
        List<Sent> waiting = new ArrayList<>();
        for (int i = 0; i < count; i += batch) {
            List<Sent> sends = new ArrayList<>();
            for (int k = i; k < Math.min(i + batch, count); k++) {
                sends.add(new Sent(k, tally));
            }
            Sent first = sends.get(0);
            try {
                if (has("request")) {
                    first.report(request(producer, first), null, null);
                } else if (has("async")) {
                    waiting.add(first);
                    producer.send(first.message, first);
                } else if (has("oneway")) {
                    producer.sendOneway(first.message);
                    first.report("ONEWAY", null, null);
                } else {
                    SendResult result = send(producer, sends);
                    for (Sent sent : sends) {
                        sent.report(result.getSendStatus().name(), result, null);
                    }
                }
            } catch (Exception error) {
                for (Sent sent : sends) {
                    sent.report("ERROR", null, error);
                }
                if (!has("keep-going")) {
                    break;
                }
            }
            pause((long) number("interval-ms", 0));
        }
        for (Sent sent : waiting) {
            sent.done.await();
        }
        if (has("oneway")) {
            pause(500); // nothing to wait for: let the bytes leave before the socket is closed
        }
        while (!listener.unchecked.isEmpty()) {
            pause(20); // the hard deadline bounds it
        }
        emit(row("summary", true, "client", name(), "op", "produce", "topic", options.get("topic"), "asked", count,
            "elapsed_ms", millis(began), "ok", tally.ok.get(), "not_ok_status", tally.notOk.get(),
            "failed", tally.failed.get()));
        pause((long) (number("linger", 0) * 1000));
        while (has("steered") && System.in.read() >= 0) {
            // what follows a check is sent behind our back: who steers us knows when it is there
        }
        producer.shutdown();
        return tally.ok.get() == count ? 0 : 1;
    }

    /**
     * Ask for a route until there is an answer: on a busy machine the library's own first question, in a thread of its
     * own, keeps others from asking for longer than the 3 s that they wait, and their sends end at once.
     */
    private static void warm(DefaultMQProducer producer) {
        for (int tried = 0; tried < WARM_TRIES; tried++) {
            try {
                producer.fetchPublishMessageQueues("TBW102");
                return;
            } catch (Exception error) {
                pause(100); // whoever is refused finds out by sending
            }
        }
    }

    /** Ask, and wait for the reply; its form is the number's. */
    private String request(DefaultMQProducer producer, Sent sent) throws Exception {
        long timeout = (long) number("send-timeout-ms", 3000);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(options.get("topic"));
        MessageQueue queue = queues.get(sent.number % queues.size());
        MessageQueueSelector selector = (all, message, argument) -> (MessageQueue) argument;
        CompletableFuture<Message> later = new CompletableFuture<>();
        RequestCallback callback = new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                later.complete(reply);
            }

            @Override
            public void onException(Throwable error) {
                later.completeExceptionally(error);
            }
        };
        Message reply = null;
        switch (sent.number % 6) {
            case 0:
                reply = producer.request(sent.message, timeout);
                break;
            case 1:
                producer.request(sent.message, callback, timeout);
                break;
            case 2:
                reply = producer.request(sent.message, selector, queue, timeout);
                break;
            case 3:
                producer.request(sent.message, selector, queue, callback, timeout);
                break;
            case 4:
                reply = producer.request(sent.message, queue, timeout);
                break;
            default:
                producer.request(sent.message, queue, callback, timeout);
        }
        sent.reply = reply == null ? later.get(2 * timeout, TimeUnit.MILLISECONDS) : reply;
        return SendStatus.SEND_OK.name();
    }

    /** What signs requests, or null. Its class is in a jar of its own, which not every version has beside it here. */
    private RPCHook hook() throws Exception {
        if (!options.containsKey("credentials")) {
            return null;
        }
        Map<String, String> keys = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(options.get("credentials")))) {
            String[] parts = line.split(":", 2);
            keys.put(parts[0].trim(), parts[1].trim());
        }
        String acl = "org.apache.rocketmq.acl.common.";
        Class<?> credentials = Class.forName(acl + "SessionCredentials");
        Object session = credentials.getConstructor(String.class, String.class)
            .newInstance(keys.get("accessKey"), keys.get("secretKey"));
        return (RPCHook) Class.forName(acl + "AclClientRPCHook").getConstructor(credentials).newInstance(session);
    }

    private SendResult send(DefaultMQProducer producer, List<Sent> sends) throws Exception {
        Sent first = sends.get(0);
        if (has("transaction")) {
            return producer.sendMessageInTransaction(first.message, first);
        }
        if (has("orderly")) {
            int shard = first.number % (int) number("shards", 1);
            return producer.send(first.message, (queues, message, key) -> queues.get(shard % queues.size()), null);
        }
        if (options.containsKey("batch")) {
            List<Message> messages = new ArrayList<>();
            sends.forEach(sent -> messages.add(sent.message));
            return producer.send(messages);
        }
        return producer.send(first.message);
    }

    private static final class Tally {
        final AtomicInteger ok = new AtomicInteger();
        final AtomicInteger notOk = new AtomicInteger();
        final AtomicInteger failed = new AtomicInteger();
    }

    private final class Sent implements SendCallback {
        final int number;
        final Message message;
        final CountDownLatch done = new CountDownLatch(1);
        Message reply;
        private final Tally tally;
        private final long began = System.nanoTime();

        Sent(int number, Tally tally) throws Exception {
            this.number = number;
            this.tally = tally;
            message = new Message(options.get("topic"), body(number));
            if (options.containsKey("tag")) {
                message.setTags(options.get("tag"));
            }
            if (options.containsKey("key-prefix")) {
                message.setKeys(options.get("key-prefix") + number);
            }
            if (number("delay-level", 0) > 0) {
                message.setDelayTimeLevel((int) number("delay-level", 0));
            }
        }

        @Override
        public void onSuccess(SendResult result) {
            report(result.getSendStatus().name(), result, null);
        }

        @Override
        public void onException(Throwable error) {
            report("ERROR", null, error);
        }

        void report(String status, SendResult result, Throwable error) {
            boolean isOk = status.equals("ONEWAY") || status.equals(SendStatus.SEND_OK.name());
            (error != null ? tally.failed : isOk ? tally.ok : tally.notOk).incrementAndGet();
            Map<String, Object> row = row("i", number, "key", message.getKeys(), "body_sha1", sha1(message.getBody()),
                "ms", millis(began), "status", status);
            if (has("transaction")) {
                row.put("transaction", InTurn.of(number).name());
            }
            if (result != null) {
                row.put("msg_id", result.getMsgId());
                row.put("offset_msg_id", result.getOffsetMsgId());
                row.put("queue_id", result.getMessageQueue().getQueueId());
                row.put("queue_offset", result.getQueueOffset());
            }
            if (reply != null) {
                row.put("reply", new String(reply.getBody(), StandardCharsets.UTF_8));
            }
            if (error != null) {
                row.put("error", text(error));
            }
            emit(row);
            done.countDown();
        }
    }

    /** What becomes of halves: the three states in turn, and a commit for those that are checked. */
    private static final class InTurn implements TransactionListener {
        private static final LocalTransactionState[] STATES = {
            LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.UNKNOW};
        final Set<String> unchecked = ConcurrentHashMap.newKeySet();

        static LocalTransactionState of(int number) {
            return STATES[number % STATES.length];
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            LocalTransactionState state = of(((Sent) argument).number);
            if (state == LocalTransactionState.UNKNOW) {
                unchecked.add(message.getTransactionId());
            }
            return state;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            unchecked.remove(message.getTransactionId());
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    /** Text that deflates to about half: '<prefix>-<i>.' and then hex digits that depend on i. */
    private byte[] body(int number) throws Exception {
        String head = text("body-prefix", "java") + "-" + number;
        int size = (int) number("body-size", 0);
        StringBuilder made = new StringBuilder(head);
        if (size > head.length()) {
            made.append('.');
            for (int n = 0; made.length() < size; n++) {
                made.append(hex("SHA-256", (head + "/" + n).getBytes(StandardCharsets.UTF_8)));
            }
            made.setLength(size);
        }
        return made.toString().getBytes(StandardCharsets.UTF_8);
    }

    // --- consuming

    private int consume() throws Exception {
        int wanted = (int) number("count", 0);
        int laterFirst = (int) number("reconsume-first", 0);
        String trace = options.get("trace-topic");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.get("group"), hook(), new AllocateMessageQueueAveragely(), trace != null, trace);
        configure(consumer);
        if (has("broker-rebalance")) { // 4.x does not know it
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.get("topic"), selector());
        DefaultMQProducer replier = has("reply") ? new DefaultMQProducer("interop_java_replier") : null;
        if (replier != null) {
            configure(replier);
            replier.setSendMsgTimeout((int) number("send-timeout-ms", 3000));
            replier.start();
        }
        AtomicInteger deliveries = new AtomicInteger();
        AtomicInteger accepted = new AtomicInteger();
        Set<String> bodies = new HashSet<>();
        Map<String, Integer> ids = new HashMap<>();
        CountDownLatch full = new CountDownLatch(1);
        long[] startedAt = {System.nanoTime()};
        Predicate<List<MessageExt>> take = messages -> {
            boolean later = false;
            for (MessageExt message : messages) { // one: consumeMessageBatchMaxSize
                int delivery = deliveries.incrementAndGet();
                later = delivery <= laterFirst;
                String digest = sha1(message.getBody());
                Map<String, Object> row = row("topic", message.getTopic(), "queue_id", message.getQueueId(),
                    "queue_offset", message.getQueueOffset(), "msg_id", message.getMsgId(), "tags", message.getTags(),
                    "keys", message.getKeys(), "body_len", message.getBody().length, "body_sha1", digest,
                    "reconsume_times", message.getReconsumeTimes(), "delivery", delivery,
                    "ms", millis(startedAt[0]), "action", later ? "later" : "ok");
                if (message.getBody().length <= 200) {
                    row.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                }
                if (replier != null) {
                    row.put("reply", reply(replier, message));
                }
                emit(row);
                if (!later) {
                    synchronized (bodies) {
                        bodies.add(digest);
                        ids.merge(message.getMsgId(), 1, Integer::sum);
                    }
                    if (accepted.incrementAndGet() >= wanted) {
                        full.countDown();
                    }
                }
            }
            return later;
        };
        if (has("lite")) {
            poll(take, full);
            return summarize(wanted, deliveries.get(), accepted.get(), ids.size(), bodies.size());
        }
        if (has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take.test(messages) ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                take.test(messages) ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        }
        if (has("steered")) {
            emit(row("event", "ready"));
            System.in.read();
        }
        startedAt[0] = System.nanoTime();
        consumer.start();
        emit(row("event", "started", "client", name(), "pid", ProcessHandle.current().pid(), "ms", millis(startedAt[0])));
        if (has("steered")) {
            Thread input = new Thread(() -> {
                try {
                    while (System.in.read() >= 0) {
                        continue;
                    }
                } catch (IOException broken) {
                    // as good as its end
                }
                full.countDown();
            });
            input.setDaemon(true);
            input.start();
        }
        if (full.await((long) (number("timeout", 0) * 1000), TimeUnit.MILLISECONDS)) {
            pause((long) (number("linger", 0) * 1000));
        }
        int status;
        synchronized (bodies) {
            status = summarize(wanted, deliveries.get(), accepted.get(), ids.size(), bodies.size());
        }
        consumer.shutdown();
        return status;
    }

    private int summarize(int wanted, int deliveries, int accepted, int ids, int bodies) {
        emit(row("summary", true, "client", name(), "op", "consume", "topic", options.get("topic"),
            "group", options.get("group"), "asked", wanted, "deliveries", deliveries,
            "accepted", accepted, "later", deliveries - accepted, "distinct_ids", ids,
            "distinct_bodies", bodies, "elapsed_ms", millis(began)));
        return accepted >= wanted ? 0 : 1;
    }

    private MessageSelector selector() {
        return has("sql") ? MessageSelector.bySql(options.get("sql")) : MessageSelector.byTag(text("expression", "*"));
    }

    private void poll(Predicate<List<MessageExt>> take, CountDownLatch full) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.get("group"));
        configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.get("topic"), selector());
        consumer.start();
        emit(row("event", "started", "client", name(), "pid", ProcessHandle.current().pid(), "ms", millis(began)));
        long end = System.nanoTime() + (long) (number("timeout", 0) * 1e9);
        while (full.getCount() > 0 && System.nanoTime() < end) {
            take.test(consumer.poll(500));
        }
        long quiet = System.nanoTime() + (long) (number("linger", 0) * 1e9);
        while (System.nanoTime() < quiet) {
            take.test(consumer.poll(200));
        }
        consumer.shutdown();
    }

    private static String reply(DefaultMQProducer replier, MessageExt message) {
        String text = "re:" + new String(message.getBody(), StandardCharsets.UTF_8);
        try {
            Message reply = MessageUtil.createReplyMessage(message, text.getBytes(StandardCharsets.UTF_8));
            return replier.send(reply).getSendStatus().name();
        } catch (Exception error) {
            return text(error);
        }
    }

    // --- small things

    private static Map<String, String> parse(String[] args) {
        Map<String, String> options = new HashMap<>();
        boolean isGood = args.length > 0 && (args[0].equals("produce") || args[0].equals("consume"));
        for (int k = 1; isGood && k < args.length; k++) {
            String name = args[k].startsWith("--") ? args[k].substring(2) : "";
            if (SWITCHES.contains(name)) {
                options.put(name, "");
            } else if (OPTIONS.contains(name) && k + 1 < args.length) {
                options.put(name, args[++k]);
            } else {
                isGood = false;
            }
        }
        isGood = isGood && options.keySet().containsAll(Arrays.asList("namesrv", "topic", "count"));
        isGood = isGood && (args[0].equals("produce") || options.keySet().containsAll(Arrays.asList("group", "timeout")));
        if (!isGood) {
            System.err.println("usage: JavaClient produce|consume --namesrv H:P --topic T --count N [...]\nnot so: "
                + String.join(" ", args));
            System.exit(2);
        }
        return options;
    }

    private void configure(ClientConfig client) {
        client.setNamesrvAddr(options.get("namesrv"));
        client.setMqClientApiTimeout((int) number("api-timeout-ms", client.getMqClientApiTimeout()));
    }

    private boolean has(String name) {
        return options.containsKey(name);
    }

    private String text(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    private double number(String name, double otherwise) {
        return has(name) ? Double.parseDouble(options.get(name)) : otherwise;
    }

    private static String name() {
        return "java " + MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION);
    }

    private static long millis(long since) {
        return (System.nanoTime() - since) / 1_000_000;
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String sha1(byte[] data) {
        return hex("SHA-1", data);
    }

    private static String hex(String algorithm, byte[] data) {
        try {
            StringBuilder made = new StringBuilder();
            for (byte one : MessageDigest.getInstance(algorithm).digest(data)) {
                made.append(String.format("%02x", one));
            }
            return made.toString();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String text(Throwable error) {
        String said = String.valueOf(error);
        return said.substring(0, Math.min(400, said.length()));
    }

    private static Map<String, Object> row(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int k = 0; k < pairs.length; k += 2) {
            made.put((String) pairs[k], pairs[k + 1]);
        }
        return made;
    }

    private static void emit(Map<String, Object> row) {
        row.put("at", System.currentTimeMillis());
        List<String> parts = new ArrayList<>();
        row.forEach((name, value) -> parts.add(quoted(name) + ": "
            + (value == null || value instanceof Number || value instanceof Boolean ? value : quoted(value.toString()))));
        synchronized (OUT) {
            OUT.println("{" + String.join(", ", parts) + "}");
            OUT.flush();
        }
    }

    private static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                made.append('\\').append(one);
            } else if (one < ' ') {
                made.append(String.format("\\u%04x", (int) one));
            } else {
                made.append(one);
            }
        }
        return made.append('"').toString();
    }
}
