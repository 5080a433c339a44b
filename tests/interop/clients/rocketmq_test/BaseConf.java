package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.MQPullConsumer;
import org.apache.rocketmq.client.consumer.MQPushConsumer;
import org.apache.rocketmq.client.producer.MQProducer;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.clientinterface.MQConsumer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.MQAdminExt;

import static org.awaitility.Awaitility.await;

/**
 * The base of RocketMQ's integration tests, by its names, for brokers that run elsewhere. Whatever of RocketMQ's own
 * base is missing here belongs to a broker or name server in this virtual machine; a test that needs it ends with
 * NoSuchMethodError or NoSuchFieldError, and is not applicable.
 */
public class BaseConf {

    public static final String NAMESRV_ADDR = RunningBrokers.NAMESRV;

    protected static final String CLUSTER_NAME = RunningBrokers.CLUSTER;
    protected static final String BROKER1_NAME = RunningBrokers.nameOf(0);
    protected static final String BROKER2_NAME = RunningBrokers.nameOf(1);
    protected static final String BROKER3_NAME = RunningBrokers.nameOf(2);

    protected static final int BROKER_NUM = 3;
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = 2 * 60 * 1000;
    protected static final int QUEUE_NUMBERS = 8;

    protected static BrokerController brokerController1 = controller(0);
    protected static BrokerController brokerController2 = controller(1);
    protected static BrokerController brokerController3 = controller(2);
    protected static List<BrokerController> brokerControllerList = RunningBrokers.ALL;
    protected static Map<String, BrokerController> brokerControllerMap = new HashMap<>();
    protected static List<Object> mqClients = new ArrayList<>();

    private static final int PATIENCE_S = 120;

    static {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        for (BrokerController each : brokerControllerList) {
            brokerControllerMap.put(each.getBrokerConfig().getBrokerName(), each);
        }
        RunningBrokers.ask(admin -> {
            MQAdminTestUtils.startAdmin(NAMESRV_ADDR);
            return null;
        });
    }

    public BaseConf() {
        waitBrokerRegistered(NAMESRV_ADDR, CLUSTER_NAME, brokerControllerList.size());
    }

    private static BrokerController controller(int index) {
        return index < RunningBrokers.ALL.size() ? RunningBrokers.ALL.get(index) : null;
    }

    public static void waitBrokerRegistered(String nsAddr, String clusterName, int count) {
        await().atMost(PATIENCE_S, TimeUnit.SECONDS).ignoreExceptions().until(() -> RunningBrokers.ask(
            admin -> admin.examineTopicRouteInfo(clusterName).getBrokerDatas().size() == count));
    }

    /** What a send was answered for can be consumed; there is nothing to be waited for. */
    public boolean awaitDispatchMs(long timeMs) {
        return true;
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopic(TopicMessageType messageType) {
        return initTopicWithName(MQRandomUtils.getRandomTopic(), messageType);
    }

    public static String initTopicWithName(String topic) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, CLUSTER_NAME, CQType.SimpleCQ);
        return topic;
    }

    public static String initTopicWithName(String topic, TopicMessageType messageType) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, CLUSTER_NAME, messageType);
        return topic;
    }

    public static String initTopicOnSampleTopicBroker(String sample) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, CQType.SimpleCQ);
        return topic;
    }

    public static String initTopicOnSampleTopicBroker(String sample, TopicMessageType messageType) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample, messageType);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample, TopicMessageType messageType) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, messageType);
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        return initConsumerGroup(config);
    }

    public static String initConsumerGroup(SubscriptionGroupConfig config) {
        for (BrokerController each : brokerControllerList) {
            RunningBrokers.ask(admin -> {
                admin.createAndUpdateSubscriptionGroupConfig(each.getBrokerAddr(), config);
                return null;
            });
        }
        return config.getGroupName();
    }

    public static DefaultMQAdminExt getAdmin(String nsAddr) {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(3 * 1000);
        admin.setNamesrvAddr(nsAddr);
        admin.setPollNameServerInterval(100);
        mqClients.add(admin);
        return admin;
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic) {
        return getProducer(nsAddr, topic, false);
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, boolean useTLS) {
        return kept(new RMQNormalProducer(nsAddr, topic, useTLS));
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(nsAddr, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
        String nsAddr, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(nsAddr, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nsAddr, String topic) {
        return kept(new RMQAsyncSendProducer(nsAddr, topic));
    }

    public static RMQNormalConsumer getConsumer(
        String nsAddr, String topic, String subExpression, AbstractListener listener) {
        return getConsumer(nsAddr, initConsumerGroup(), topic, subExpression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String nsAddr, String topic, String subExpression, AbstractListener listener, boolean useTLS) {
        return getConsumer(nsAddr, initConsumerGroup(), topic, subExpression, listener, useTLS);
    }

    public static RMQNormalConsumer getConsumer(
        String nsAddr, String group, String topic, String subExpression, AbstractListener listener) {
        return getConsumer(nsAddr, group, topic, subExpression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String nsAddr, String group, String topic, String subExpression, AbstractListener listener, boolean useTLS) {
        return kept(ConsumerFactory.getRMQNormalConsumer(nsAddr, group, topic, subExpression, listener, useTLS));
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }

    public static Set<String> getBrokers() {
        return new HashSet<>(brokerControllerMap.keySet());
    }

    public static void shutdown() {
        List<Object> clients = new ArrayList<>(mqClients);
        mqClients.clear();
        shutdown(clients);
    }

    public static void shutdown(List<Object> clients) {
        for (Object each : clients) {
            ForkJoinPool.commonPool().execute(() -> shutdown(each));
        }
    }

    private static void shutdown(Object client) {
        if (client instanceof AbstractMQProducer) {
            ((AbstractMQProducer) client).shutdown();
        } else if (client instanceof AbstractMQConsumer) {
            ((AbstractMQConsumer) client).shutdown();
        } else if (client instanceof MQConsumer) {
            ((MQConsumer) client).shutdown();
        } else if (client instanceof MQAdminExt) {
            ((MQAdminExt) client).shutdown();
        } else if (client instanceof MQProducer) {
            ((MQProducer) client).shutdown();
        } else if (client instanceof MQPullConsumer) {
            ((MQPullConsumer) client).shutdown();
        } else if (client instanceof MQPushConsumer) {
            ((MQPushConsumer) client).shutdown();
        }
    }
}
