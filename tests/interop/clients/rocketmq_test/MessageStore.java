package org.apache.rocketmq.store;

/** What tests ask of a store that a broker answers from outside. */
public interface MessageStore {

    long getMaxOffsetInQueue(String topic, int queue);

    long getMinOffsetInQueue(String topic, int queue);

    long dispatchBehindBytes();
}
