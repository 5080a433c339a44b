import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Command line around Maven's org.apache.rocketmq:rocketmq-client-java, RocketMQ 5's gRPC client.
 *
 *     java -cp ... GrpcJavaClient produce --namesrv PROXY --topic T --count N [...]
 *     java -cp ... GrpcJavaClient consume --namesrv PROXY --topic T --group G --count N --timeout S [...]
 *
 * PROXY is the endpoint of a proxy, host:port. One JSON object per line on stdout; exactly one has "summary": true.
 * Exit status: 0 all done, 1 short or failed, 2 bad usage, 3 the hard deadline fired.
 * The options are those of grpc_client.py, and:
 *   --plain                not encrypted; else it is, as the library does unless told otherwise: it believes every certificate
 *   --credentials FILE     accessKey and secretKey, as in tools.yml: calls are signed
 *   produce --tags A,B     tags, one after the other
 *   consume --sql          a condition on properties, in place of --expression
 * A delayed message shows by "early_ms" how long before its time it has come.
 */
public final class GrpcJavaClient {
    private static final int GRACE_S = 20;
    private static final Set<String> SWITCHES = new HashSet<>(Arrays.asList(
        "keep-going", "transaction", "simple", "plain"));
    private static final Set<String> OPTIONS = new HashSet<>(Arrays.asList(
        "namesrv", "topic", "count", "group", "timeout", "interval-ms", "message-groups", "delay-s", "tags",
        "expression", "sql", "reconsume-first", "linger", "credentials"));
    private static final PrintStream OUT = System.out;

    private final Map<String, String> options;
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();

    private GrpcJavaClient(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = parse(args);
        Path logs = Files.createTempDirectory("interop-grpc-java-");
        System.setProperty("rocketmq.log.root", logs.toString());
        GrpcJavaClient client = new GrpcJavaClient(options);
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
            emit(row("summary", true, "op", args[0], "error", text(error)));
        }
        try (Stream<Path> found = Files.walk(logs)) {
            found.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        }
        OUT.flush();
        Runtime.getRuntime().halt(status); // some of its threads are no daemons
    }

    private ClientConfiguration configuration() throws IOException {
        ClientConfigurationBuilder found = ClientConfiguration.newBuilder()
            .setEndpoints(options.get("namesrv"))
            .setRequestTimeout(Duration.ofSeconds(20));
        if (has("plain")) {
            found.enableSsl(false);
        }
        if (has("credentials")) {
            Map<String, String> keys = new HashMap<>();
            for (String line : Files.readAllLines(Path.of(options.get("credentials")))) {
                String[] parts = line.split(":", 2);
                keys.put(parts[0].trim(), parts[1].trim());
            }
            found.setCredentialProvider(
                new StaticSessionCredentialsProvider(keys.get("accessKey"), keys.get("secretKey")));
        }
        return found.build();
    }

    // --- producing

    private int produce() throws Exception {
        String topic = options.get("topic");
        ProducerBuilder builder = provider.newProducerBuilder()
            .setClientConfiguration(configuration())
            .setTopics(topic);
        if (has("transaction")) {
            builder.setTransactionChecker(message -> {
                emit(row("event", "checked", "body_sha1", sha1(bytes(message.getBody()))));
                return TransactionResolution.COMMIT;
            });
        }
        Producer producer = builder.build();
        String[] tags = options.containsKey("tags") ? options.get("tags").split(",") : new String[0];
        int groups = (int) number("message-groups", 0);
        int failed = 0;
        for (int number = 0; number < (int) number("count", 0); number++) {
            byte[] body = ("grpc-" + number).getBytes(StandardCharsets.UTF_8);
            MessageBuilder message = provider.newMessageBuilder()
                .setTopic(topic)
                .setBody(body)
                .setKeys("k" + number)
                .addProperty("number", String.valueOf(number));
            if (tags.length > 0) {
                message.setTag(tags[number % tags.length]);
            }
            if (groups > 0) {
                message.setMessageGroup("g" + number % groups);
            }
            if (has("delay-s")) {
                message.setDeliveryTimestamp(System.currentTimeMillis() + (long) (1000 * number("delay-s", 0)));
            }
            Map<String, Object> row = row("i", number, "body_sha1", sha1(body));
            try {
                SendReceipt receipt;
                if (has("transaction")) {
                    Transaction transaction = producer.beginTransaction();
                    receipt = producer.send(message.build(), transaction);
                    // One is committed, the next rolled back, the third is asked about.
                    row.put("end", Arrays.asList("commit", "rollback", "open").get(number % 3));
                    if (number % 3 == 0) {
                        transaction.commit();
                    } else if (number % 3 == 1) {
                        transaction.rollback();
                    }
                } else {
                    receipt = producer.send(message.build());
                }
                row.put("status", "SEND_OK");
                row.put("msg_id", receipt.getMessageId());
            } catch (Exception error) {
                failed++;
                row.put("status", "ERROR");
                row.put("error", text(error));
            }
            emit(row);
            if (failed > 0 && !has("keep-going")) {
                break;
            }
            pause((long) number("interval-ms", 0));
        }
        emit(row("summary", true, "failed", failed));
        if (has("transaction")) {
            pause((long) (1000 * number("linger", 0)));
        }
        producer.close();
        return failed == 0 ? 0 : 1;
    }

    // --- consuming

    private final CountDownLatch done = new CountDownLatch(1);
    private int seen;

    private ConsumeResult consumed(MessageView message) {
        boolean isLater;
        synchronized (this) {
            seen++;
            isLater = seen <= number("reconsume-first", 0);
        }
        byte[] body = bytes(message.getBody());
        emit(row("body_sha1", sha1(body), "msg_id", message.getMessageId(), "keys", message.getKeys(),
            "group", message.getMessageGroup().orElse(null), "tag", message.getTag().orElse(null),
            "properties", message.getProperties(), "reconsume_times", message.getDeliveryAttempt() - 1,
            "early_ms", message.getDeliveryTimestamp().map(due -> due - System.currentTimeMillis()).orElse(null),
            "body", new String(body, StandardCharsets.UTF_8), "action", isLater ? "later" : "ok"));
        synchronized (this) {
            if (seen - number("reconsume-first", 0) >= number("count", 0)) {
                done.countDown();
            }
        }
        return isLater ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    private int consume() throws Exception {
        FilterExpression wanted = has("sql")
            ? new FilterExpression(options.get("sql"), FilterExpressionType.SQL92)
            : new FilterExpression(options.getOrDefault("expression", "*"), FilterExpressionType.TAG);
        Map<String, FilterExpression> subscriptions = Collections.singletonMap(options.get("topic"), wanted);
        if (has("simple")) {
            receive(subscriptions);
        } else {
            provider.newPushConsumerBuilder()
                .setClientConfiguration(configuration())
                .setConsumerGroup(options.get("group"))
                .setSubscriptionExpressions(subscriptions)
                .setMessageListener(this::consumed)
                .build(); // and not closed: that waits for its last call to receive, 20 s
            emit(row("event", "started"));
            done.await((long) number("timeout", 0), TimeUnit.SECONDS);
            pause((long) (1000 * number("linger", 0)));
        }
        emit(row("summary", true, "accepted", seen - (int) number("reconsume-first", 0)));
        return done.getCount() == 0 ? 0 : 1;
    }

    private void receive(Map<String, FilterExpression> subscriptions) throws Exception {
        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(options.get("group"))
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(subscriptions)
            .build()) {
            emit(row("event", "started"));
            long deadline = System.nanoTime() + (long) (1e9 * number("timeout", 0));
            while (done.getCount() > 0 && System.nanoTime() < deadline) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    if (consumed(message) == ConsumeResult.SUCCESS) {
                        consumer.ack(message);
                    } else {
                        consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                    }
                }
            }
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
            System.err.println("usage: GrpcJavaClient produce|consume --namesrv H:P --topic T --count N [...]\nnot so: "
                + String.join(" ", args));
            System.exit(2);
        }
        return options;
    }

    private boolean has(String name) {
        return options.containsKey(name);
    }

    private double number(String name, double otherwise) {
        return has(name) ? Double.parseDouble(options.get(name)) : otherwise;
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] found = new byte[buffer.remaining()];
        buffer.duplicate().get(found);
        return found;
    }

    private static String sha1(byte[] data) {
        try {
            StringBuilder made = new StringBuilder();
            for (byte one : MessageDigest.getInstance("SHA-1").digest(data)) {
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
        String line = json(row);
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static String json(Object value) {
        List<String> parts = new ArrayList<>();
        if (value instanceof Map) {
            ((Map<?, ?>) value).forEach((name, each) -> parts.add(quoted(name.toString()) + ": " + json(each)));
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof Collection) {
            ((Collection<?>) value).forEach(each -> parts.add(json(each)));
            return "[" + String.join(", ", parts) + "]";
        }
        return value == null || value instanceof Number || value instanceof Boolean
            ? String.valueOf(value) : quoted(value.toString());
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
