"""Orders in, enriched orders out, every order exactly once: a streaming job to start from.

    python examples/enrich_orders.py --name-server 127.0.0.1:9876 --checkpoint /var/lib/jobs/enrich-orders

Kill it, kill the broker's leader, start it again: it goes on where it was (docs/pipeline.md says why).
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import functions as f

from pipeline.spark.session import open_session
from pipeline.spark.streams import start_stream

ORDER = "id bigint, customer int, quantity int, price_cents bigint"
CUSTOMERS = [
    (0, "Ada", "gold"),
    (1, "Blaise", "silver"),
    (2, "Carl", "silver"),
    (3, "Dorothy", "gold"),
]


def enrich(orders: Any, customers: Any) -> Any:
    """Join orders with the customers, add totals, and tag each with its customer's tier.

    Args:
        orders: rows of the source; bodies are JSON (`ORDER`).
        customers: customer, name, tier.

    Returns:
        Rows for the sink. What is no order goes through as it is, with the tag "invalid".
    """
    body = f.col("body").cast("string")
    read = orders.withColumn("order", f.from_json(body, ORDER))
    joined = read.join(f.broadcast(customers), f.col("order.customer") == f.col("customer"), "left")
    enriched = f.to_json(
        f.struct(
            "order.id",
            "name",
            "tier",
            (f.col("order.quantity") * f.col("order.price_cents")).alias("total_cents"),
        )
    )
    is_order = f.col("order.id").isNotNull()
    return joined.select(
        f.when(is_order, enriched).otherwise(body).alias("body"),
        f.when(is_order, f.coalesce("tier", f.lit("unknown"))).otherwise("invalid").alias("tags"),
        f.when(is_order, f.concat(f.lit("order-"), f.col("order.id"))).alias("keys"),
        # Where each order stood in its topic: by that the broker knows a row again.
        *("topic", "brokerName", "queueId", "queueOffset"),
    )


def main() -> None:
    """Read topic Orders, enrich, write topic Enriched, until stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master")
    options = parser.parse_args()
    spark = open_session("enrich-orders", master=options.master)
    customers = spark.createDataFrame(CUSTOMERS, "customer int, name string, tier string")
    source = {
        "nameServer": options.name_server,
        "topic": "Orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "20000",
        "commitGroup": "enrich-orders",
    }
    sink = {
        "nameServer": options.name_server,
        "topic": "Enriched",
        "delivery": "exactly-once",
        "sinkId": "enrich-orders",
        "sendTimeoutMs": "10000",
    }
    query = start_stream(
        spark,
        source,
        lambda orders: enrich(orders, customers).writeStream.format("rocketmq").options(**sink),
        checkpoint=options.checkpoint,
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
