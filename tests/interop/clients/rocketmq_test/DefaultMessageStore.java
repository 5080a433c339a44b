package org.apache.rocketmq.store;

import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.test.base.RunningBrokers;

/** The store of a broker, as it answers; some tests ask for the name of this class. */
public class DefaultMessageStore implements MessageStore {

    private final String broker;

    public DefaultMessageStore(String broker) {
        this.broker = broker;
    }

    @Override
    public long getMaxOffsetInQueue(String topic, int queue) {
        TopicOffset found = RunningBrokers.boundsOf(broker, topic, queue);
        return found == null ? 0 : found.getMaxOffset();
    }

    @Override
    public long getMinOffsetInQueue(String topic, int queue) {
        TopicOffset found = RunningBrokers.boundsOf(broker, topic, queue);
        return found == null ? -1 : found.getMinOffset();
    }

    /** Nothing is: a send is answered when it can be consumed. */
    @Override
    public long dispatchBehindBytes() {
        return 0;
    }
}
