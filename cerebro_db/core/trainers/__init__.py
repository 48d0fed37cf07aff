"""What the server and the trainer processes share: the pipe, messages to the nursery, memory, shards."""
