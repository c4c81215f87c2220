"""What the runtime says about itself: logs, metrics, and the message that it leaves when it ends."""
