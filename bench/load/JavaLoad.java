import java.util.Arrays;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Apache's Java client, unmodified, keeps sends in flight; running.py describes the lines that it prints.
 *
 *     java -cp ... JavaLoad sync|async NAMESRV TOPIC IN_FLIGHT BODY_BYTES WARM_UP_S SECONDS ROUNDS HOME
 *
 * sync: so many threads, each of which waits for its answer. async: so many callbacks are open.
 */
public final class JavaLoad {
    private static final int BUCKETS = 64 * 32; // 32 for each power of two of nanoseconds: a bucket is 3 % wide
    private static final long TIMEOUT_MS = 10_000;
    private static final int START_TRIES = 3000; // half a minute
    private static final int SAMPLES = 16;
    private static final int SAMPLE_EVERY = 64;

    /** What is measured from one line to the next. */
    private static final class Round {
        final long begunNs = System.nanoTime();
        final long cpuBegunNs = cpuNs();
        final LongAdder done = new LongAdder();
        final LongAdder refused = new LongAdder();
        final AtomicLongArray histogram = new AtomicLongArray(BUCKETS);
        final AtomicReference<String> error = new AtomicReference<>("");
        final AtomicLong numbered = new AtomicLong();
        final Queue<String> samples = new ConcurrentLinkedQueue<>();

        void done(long sentNs, SendResult result) {
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                failed(result.getSendStatus().toString());
                return;
            }
            done.increment();
            histogram.incrementAndGet(bucketOf(System.nanoTime() - sentNs));
            long number = numbered.getAndIncrement();
            if (number % SAMPLE_EVERY == 0 && number < SAMPLES * SAMPLE_EVERY) {
                samples.add(sampleOf(result));
            }
        }

        void failed(String why) {
            refused.increment();
            error.compareAndSet("", why);
        }

        double percentileUs(double part) {
            long total = 0;
            for (int i = 0; i < BUCKETS; i++) {
                total += histogram.get(i);
            }
            long wanted = Math.min(total - 1, (long) (total * part));
            long seen = 0;
            for (int i = 0; i < BUCKETS; i++) {
                seen += histogram.get(i);
                if (seen > wanted) {
                    return (1L << (i / 32)) * (1 + (i % 32 + 0.5) / 32) / 1000;
                }
            }
            return 0;
        }

        void print() {
            System.out.println(String.format("{\"seconds\":%.6f,\"requests\":%d,\"refused\":%d,\"records\":0,"
                + "\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,"
                + "\"generator_cpu_s\":%.6f,\"error_hex\":\"%s\",\"samples\":[%s]}",
                (System.nanoTime() - begunNs) / 1e9, done.sum() + refused.sum(), refused.sum(), percentileUs(0.5),
                percentileUs(0.99), percentileUs(1), (cpuNs() - cpuBegunNs) / 1e9, hex(error.get()),
                String.join(",", samples)));
            System.out.flush();
        }
    }

    private static volatile Round round = new Round();
    private static volatile boolean isStopping;

    public static void main(String[] args) throws Exception {
        int inFlight = Integer.parseInt(args[3]);
        byte[] body = new byte[Integer.parseInt(args[4])];
        Arrays.fill(body, (byte) 'x');
        System.setProperty("user.home", args[8]); // the library logs below it
        DefaultMQProducer producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr(args[1]);
        producer.setInstanceName("bench" + System.nanoTime());
        producer.setSendMsgTimeout((int) TIMEOUT_MS);
        producer.setVipChannelEnabled(false);
        producer.start();
        if (args[0].equals("async")) {
            daemon(() -> sendAsync(producer, args[2], body, inFlight));
        } else {
            for (int i = 0; i < inFlight; i++) {
                daemon(() -> sendSync(producer, args[2], body));
            }
        }
        // The route, the connection and the classes are there once a send is acknowledged.
        for (int left = START_TRIES; left > 0 && round.done.sum() == 0; left--) {
            Thread.sleep(10);
        }
        sleep(args[5]);
        round = new Round();
        System.out.println("{\"warm\":true}");
        System.out.flush();
        for (int left = Integer.parseInt(args[7]); left > 0; left--) {
            sleep(args[6]);
            Round ended = round;
            round = new Round();
            ended.print();
        }
        isStopping = true;
        Runtime.getRuntime().halt(0);
    }

    private static void sendSync(DefaultMQProducer producer, String topic, byte[] body) {
        while (!isStopping) {
            long sentNs = System.nanoTime();
            try {
                SendResult result = producer.send(new Message(topic, "bench", body));
                round.done(sentNs, result);
            } catch (Exception error) {
                round.failed(error.toString());
            }
        }
    }

    private static void sendAsync(DefaultMQProducer producer, String topic, byte[] body, int inFlight) {
        Semaphore free = new Semaphore(inFlight);
        while (!isStopping) {
            free.acquireUninterruptibly();
            long sentNs = System.nanoTime();
            try {
                producer.send(new Message(topic, "bench", body), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        free.release();
                        round.done(sentNs, result);
                    }

                    @Override
                    public void onException(Throwable error) {
                        free.release();
                        round.failed(error.toString());
                    }
                }, TIMEOUT_MS);
            } catch (Exception error) {
                free.release();
                round.failed(error.toString());
            }
        }
    }

    private static String sampleOf(SendResult result) {
        String header = String.format("{\"extFields\":{\"queueId\":\"%d\",\"queueOffset\":\"%d\"}}",
            result.getMessageQueue().getQueueId(), result.getQueueOffset());
        return String.format("{\"key\":\"%s\",\"header_hex\":\"%s\"}", result.getMsgId(), hex(header));
    }

    private static int bucketOf(long ns) {
        long at = Math.max(32, ns);
        int power = 63 - Long.numberOfLeadingZeros(at);
        return power * 32 + (int) ((at >> (power - 5)) & 31);
    }

    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory
            .getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static String hex(String text) {
        StringBuilder found = new StringBuilder();
        for (byte each : text.getBytes(java.nio.charset.StandardCharsets.UTF_8)) {
            found.append(String.format("%02x", each));
        }
        return found.toString();
    }

    private static void daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    private static void sleep(String seconds) throws InterruptedException {
        Thread.sleep((long) (1000 * Double.parseDouble(seconds)));
    }
}
