package org.apache.rocketmq.broker;

import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.base.RunningBrokers;

/**
 * Stands where a test expects the object of a broker in its own virtual machine: a broker elsewhere, which is asked.
 * What it has no method for a test cannot have of it, and ends with NoSuchMethodError. Settings that a test changes
 * change nothing; the runner tells which those were.
 */
public class BrokerController {

    private final String name;
    private final BrokerConfig config = new BrokerConfig();
    private final MessageStoreConfig storeConfig = new MessageStoreConfig();

    public BrokerController(String name) {
        this.name = name;
        config.setBrokerName(name);
    }

    public BrokerConfig getBrokerConfig() {
        return config;
    }

    public MessageStoreConfig getMessageStoreConfig() {
        return storeConfig;
    }

    public String getBrokerAddr() {
        return RunningBrokers.addressOf(name);
    }

    public MessageStore getMessageStore() {
        return new DefaultMessageStore(name);
    }

    public ConsumerOffsetManager getConsumerOffsetManager() {
        return new ConsumerOffsetManager(name);
    }

    public TopicConfigManager getTopicConfigManager() {
        return new TopicConfigManager(name);
    }
}
