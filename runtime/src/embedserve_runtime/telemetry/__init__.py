"""What the runtime reports about itself: logs, metrics, traces, the termination message."""
