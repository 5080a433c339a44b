package org.apache.rocketmq.broker.topic;

import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.test.base.RunningBrokers;

/** The topics of a broker, as it answers. */
public class TopicConfigManager {

    private final String broker;

    public TopicConfigManager(String broker) {
        this.broker = broker;
    }

    public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
        return RunningBrokers.topicsOf(broker);
    }
}
