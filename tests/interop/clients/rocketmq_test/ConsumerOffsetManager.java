package org.apache.rocketmq.broker.offset;

import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.test.base.RunningBrokers;

/** The consumer offsets of a broker, as it answers. */
public class ConsumerOffsetManager {

    private final String broker;

    public ConsumerOffsetManager(String broker) {
        this.broker = broker;
    }

    public long queryOffset(String group, String topic, int queue) {
        OffsetWrapper found = RunningBrokers.progressOf(broker, group, topic, queue);
        return found == null ? -1 : found.getConsumerOffset();
    }

    public long queryPullOffset(String group, String topic, int queue) {
        OffsetWrapper found = RunningBrokers.progressOf(broker, group, topic, queue);
        return found == null ? -1 : found.getPullOffset();
    }
}
