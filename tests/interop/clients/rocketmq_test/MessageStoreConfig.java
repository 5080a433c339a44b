package org.apache.rocketmq.store.config;

/** The settings of a store that tests change; here they change nothing. */
public class MessageStoreConfig {

    private boolean appendTopicForTimerDeleteKey = false;
    private boolean enableBuildConsumeQueueConcurrently = false;

    public void setAppendTopicForTimerDeleteKey(boolean value) {
        appendTopicForTimerDeleteKey = value;
    }

    public void setEnableBuildConsumeQueueConcurrently(boolean value) {
        enableBuildConsumeQueueConcurrently = value;
    }
}
