"""What is measured: our group, Apache RocketMQ's brokers and PySyncObj, each as processes of its own."""
