package org.apache.rocketmq.test.base;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The brokers that were started outside of this virtual machine, and what they answer when a test asks one of them. */
public final class RunningBrokers {

    public static final String NAMESRV = System.getProperty("it.namesrv");
    public static final String CLUSTER = System.getProperty("it.cluster");
    public static final List<BrokerController> ALL = new ArrayList<>();

    private static final long TIMEOUT_MS = 30_000;
    private static final DefaultMQAdminExt ADMIN = new DefaultMQAdminExt(TIMEOUT_MS);

    static {
        ADMIN.setNamesrvAddr(NAMESRV);
        ADMIN.setInstanceName("running-brokers");
        for (String name : System.getProperty("it.brokers").split(",")) {
            ALL.add(new BrokerController(name));
        }
        try {
            ADMIN.start();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private RunningBrokers() {
    }

    /** A question that may fail as any request may. */
    public interface Question<T> {
        T ask(DefaultMQAdminExt admin) throws Exception;
    }

    public static <T> T ask(Question<T> question) {
        try {
            return question.ask(ADMIN);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    public static String nameOf(int index) {
        return index < ALL.size() ? ALL.get(index).getBrokerConfig().getBrokerName() : null;
    }

    /** The address of the leader, as the route has it now. */
    public static String addressOf(String name) {
        return ask(admin -> admin.examineBrokerClusterInfo().getBrokerAddrTable().get(name).getBrokerAddrs().get(0L));
    }

    /** The bounds of a queue; null where there is none. */
    public static TopicOffset boundsOf(String name, String topic, int queue) {
        MessageQueue asked = new MessageQueue(topic, name, queue);
        return ask(admin -> admin.examineTopicStats(topic).getOffsetTable().get(asked));
    }

    /** What a group has consumed of a queue; null where nothing is known. */
    public static OffsetWrapper progressOf(String name, String group, String topic, int queue) {
        MessageQueue asked = new MessageQueue(topic, name, queue);
        ConsumeStats found = ask(admin -> admin.examineConsumeStats(addressOf(name), group, topic, TIMEOUT_MS));
        return found.getOffsetTable().get(asked);
    }

    public static ConcurrentMap<String, TopicConfig> topicsOf(String name) {
        return new ConcurrentHashMap<>(
            ask(admin -> admin.getAllTopicConfig(addressOf(name), TIMEOUT_MS)).getTopicConfigTable());
    }

    /** Which settings of RocketMQ's a test has changed since the last call, as NAME=VALUE; they are as before then. */
    public static List<String> takeChanges() {
        TreeSet<String> found = new TreeSet<>();
        for (BrokerController each : ALL) {
            BrokerConfig unchanged = new BrokerConfig();
            unchanged.setBrokerName(each.getBrokerConfig().getBrokerName());
            unchanged.setNamesrvAddr(each.getBrokerConfig().getNamesrvAddr()); // of a property that tools set
            takeChanges(each.getBrokerConfig(), unchanged, found);
            takeChanges(each.getMessageStoreConfig(), new MessageStoreConfig(), found);
        }
        return new ArrayList<>(found);
    }

    private static void takeChanges(Object config, Object unchanged, TreeSet<String> found) {
        try {
            for (Field field : config.getClass().getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || Modifier.isFinal(field.getModifiers())) {
                    continue;
                }
                field.setAccessible(true);
                Object value = field.get(config);
                if (!Objects.equals(value, field.get(unchanged))) {
                    found.add(field.getName() + "=" + value);
                    field.set(config, field.get(unchanged));
                }
            }
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }
}
