"""A minimal HTTP model server, where FastAPI is not installed: asyncio, one process, and a traced Keras model.

    python -m tests.bench.rivals.plain_server FOLDER DESCRIPTOR

It reads one request after the other from each connection: POST, a JSON body with the row x; the answer is JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import keras  # noqa: F401  (before TensorFlow, as in the other rivals)
import numpy as np
import tensorflow as tf

from tests.bench.rivals.common import Task, model_of

given = Task(sys.argv[1])
model = model_of(given.work, given.configurations[0])
shape = tuple(given.work["shape"])


@tf.function(input_signature=[tf.TensorSpec((None, *shape), tf.float32)], autograph=False)
def outputs(rows: tf.Tensor) -> tf.Tensor:
    return model(rows, training=False)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
            body = await reader.readexactly(int(fields[b"content-length"]))
            probabilities = outputs(np.array([json.loads(body)["x"]], "float32")).numpy()[0]
            best = int(probabilities.argmax())
            answer = json.dumps({"class": best, "probability": float(probabilities[best])}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    outputs(np.zeros((1, *shape), "float32"))
    server = await asyncio.start_server(serve, sock=socket.socket(fileno=int(sys.argv[2])))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
