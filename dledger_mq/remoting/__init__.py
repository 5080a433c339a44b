"""RocketMQ's remoting protocol: frames, headers, codes and JSON bodies, without I/O."""
