"""The sink of format "rocketmq" without Spark: options, columns, queues, sending.

`pipeline.spark.sink` joins it to Spark; a program of one's own can use it with Arrow batches alone.
"""
