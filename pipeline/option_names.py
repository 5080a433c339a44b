"""The names of all options of format "rocketmq": the source's and the sink's.

A table in a catalog has one set of options for both, so each side must know what is the other's.
"""

from __future__ import annotations

from typing import Final

_ACCESS_OPTIONS: Final = (
    *("credentialsPath", "tls", "tlsTrustPath", "tlsCertPath", "tlsKeyPath"),
    *("tlsKeyPasswordPath", "tlsInsecure"),
)

SOURCE_OPTIONS: Final = frozenset(
    {
        *("nameServer", "topic", "subscribe", "topicPattern", "subscribePattern", "assign"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp"),
        "endingOffsetsByTimestamp",
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        *("failOnDataLoss", "numPartitions", "minPartitions"),
        *("subExpression", "sqlExpression", "keys"),
        *("pullBatchSize", "pullTimeoutMs", "retryTimeoutMs"),
        *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        *("includeProperties", "includeHeaders", "propertiesAs", "includeMetadata"),
        *("commitGroup", "metadataPath", "readFrom", "includeArchive"),
        *_ACCESS_OPTIONS,
    }
)

SINK_OPTIONS: Final = frozenset(
    {
        *("nameServer", "topic", "delivery", "sinkId", "batchId", "rowKeys", "queueSelector"),
        *("sendBatchBytes", "sendTimeoutMs", "retries", "maxRowsPerSecond"),
        *("olderBatch", "countsPath"),
        *("metadataPath", "checkpointLocation"),
        *_ACCESS_OPTIONS,
    }
)
