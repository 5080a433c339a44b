package org.apache.rocketmq.test.base;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.TopicAttributes;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/** Creates topics. What starts a broker or a proxy in this virtual machine is missing here. */
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
        return MQAdminTestUtils.createTopic(nsAddr, where, topic, queues, attributes, PATIENCE_S);
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
