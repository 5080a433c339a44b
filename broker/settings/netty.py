"""The keys of Netty's sockets, which a broker and a name server of RocketMQ share. Data only."""

from __future__ import annotations

from typing import Final

from broker.settings.keys import flag, number

NETTY: Final = (
    number("channelNotActiveInterval", "60000"),
    number("clientAsyncSemaphoreValue", "65535"),
    number("clientCallbackExecutorThreads", "by cores"),
    number("clientChannelMaxIdleTimeSeconds", "120"),
    flag("clientCloseSocketIfTimeout", "true"),
    number("clientOnewaySemaphoreValue", "65535"),
    flag("clientPooledByteBufAllocatorEnable", "false"),
    number("clientSocketRcvBufSize", "0"),
    number("clientSocketSndBufSize", "0"),
    number("clientWorkerThreads", "4"),
    number("connectTimeoutMillis", "3000"),
    flag("disableCallbackExecutor", None, "false"),
    flag("disableNettyWorkerGroup", None, "false"),
    flag("enableReconnectForGoAway", None, "true"),
    flag("enableShutdownGracefully", None, "false"),
    number("maxReconnectIntervalTimeSeconds", None, "60"),
    flag("scanAvailableNameSrv", None, "true"),
    number("serverAsyncSemaphoreValue", "64"),
    number("serverCallbackExecutorThreads", "0"),
    number("serverChannelMaxIdleTimeSeconds", "120"),
    flag("serverNettyWorkerGroupEnable", None, "true"),
    number("serverOnewaySemaphoreValue", "256"),
    flag("serverPooledByteBufAllocatorEnable", "true"),
    number("serverSelectorThreads", "3"),
    number("serverSocketBacklog", "1024"),
    number("serverSocketRcvBufSize", "0"),
    number("serverSocketSndBufSize", "0"),
    number("serverWorkerThreads", "8"),
    number("shutdownWaitTimeSeconds", None, "30"),
    flag("useEpollNativeSelector", "false"),
    number("writeBufferHighWaterMark", "0"),
    number("writeBufferLowWaterMark", "0"),
)
