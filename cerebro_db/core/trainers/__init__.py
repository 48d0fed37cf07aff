"""What the server and the processes of trainers agree on: the pipe, messages, memory and its folders."""
