package org.apache.rocketmq.test.base;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.TopicAttributes;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

import static org.awaitility.Awaitility.await;

/**
 * Creates topics; what a broker refuses is an error here, as theirs is not. What starts a broker or a proxy in this
 * virtual machine is missing.
 */
public class IntegrationTestBase {

    private static final int PATIENCE_S = 60;

    public static boolean initTopic(
        String topic, String nsAddr, String where, int queues, CQType queueType, TopicMessageType messageType) {
        Map<String, String> attributes = new HashMap<>();
        if (queueType != CQType.SimpleCQ) {
            attributes.put("+" + TopicAttributes.QUEUE_TYPE_ATTRIBUTE.getName(), queueType.toString());
        }
        if (messageType != TopicMessageType.NORMAL) {
            attributes.put("+" + TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE.getName(), messageType.toString());
        }
        RunningBrokers.ask(admin -> {
            admin.createTopic(where, topic, queues, attributes);
            return null;
        });
        await().atMost(PATIENCE_S, TimeUnit.SECONDS).until(
            () -> RunningBrokers.ask(admin -> MQAdminTestUtils.checkTopicExist(admin, topic)));
        return true;
    }

    public static boolean initTopic(String topic, String nsAddr, String where, int queues, CQType queueType) {
        return initTopic(topic, nsAddr, where, queues, queueType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String nsAddr, String where, CQType queueType) {
        return initTopic(topic, nsAddr, where, BaseConf.QUEUE_NUMBERS, queueType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String nsAddr, String where, TopicMessageType messageType) {
        return initTopic(topic, nsAddr, where, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, messageType);
    }
}
