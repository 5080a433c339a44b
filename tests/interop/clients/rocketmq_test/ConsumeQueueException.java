package org.apache.rocketmq.store.exception;

/** Is named by tests as what they might throw. */
public class ConsumeQueueException extends Exception {

    private static final long serialVersionUID = 1L;
}
