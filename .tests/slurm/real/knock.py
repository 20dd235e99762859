"""Try ports as another user, without any key or token, and print their responses. For the model environment's interpreter.

usage: python knock.py UID ADDRESS:PORT...           on standard output {ADDRESS:PORT: {connect, http, body, grpc, zmq, store}}
       python knock.py UID SECONDS ADDRESS:PORT...   subscribe to ZeroMQ sockets; {ADDRESS:PORT: [numbers in each pickle]}

``http``: status of ``GET /metrics``, or null if the port does not speak HTTP. ``grpc``: Ray's responses to one harmless call of each of its
services, by status name; UNIMPLEMENTED (another service) is omitted. ``zmq``: whether the port begins with ZeroMQ's greeting. ``store``:
what torch's TCPStore client reads after it wrote "written", or null. Received pickles are not loaded.
"""

import contextlib
import http.client
import json
import os
import pickletools
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import grpc
import zmq
from torch.distributed import TCPStore

# One harmless call of each service (ray/src/ray/protobuf, 2.60); an empty message is a valid request for each.
CALLS = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "NodeManagerService/GetSystemConfig",
    "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats",
    "RayletDriver/ClusterInfo",
)


def knock(address, port):
    """Return the responses of one port to a client without a key."""
    try:
        socket.create_connection((address, port), timeout=3).close()
    except OSError:
        return {"connect": False}
    status, body = _http(address, port)
    found = {"connect": True, "http": status, "body": body, "grpc": {}, "zmq": False, "store": None}
    if status is None:
        found["zmq"] = _greets(address, port)
        found["grpc"] = {} if found["zmq"] else _grpc(address, port)
        found["store"] = None if found["zmq"] or found["grpc"] else _store(address, port)
    return found


def _greets(address, port):
    """Return whether the port begins with ZeroMQ's greeting (ZMTP 3.1, section 2.2: FF, eight bytes, 7F)."""
    try:
        with socket.create_connection((address, port), timeout=3) as connection:
            connection.settimeout(1)
            said = connection.recv(10)
            return len(said) == 10 and said[0] == 0xFF and said[9] == 0x7F
    except OSError:
        return False


def _store(address, port):
    found = []
    # Its constructor waits for ever if another program listens and sends nothing.
    thread = threading.Thread(target=_write, args=(address, port, found), daemon=True)
    thread.start()
    thread.join(5)
    return found[0] if found else None


def _write(address, port, found):
    with contextlib.suppress(RuntimeError, OSError):
        store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=3), wait_for_workers=False)
        store.set("somebody", "written")
        found.append(store.get("somebody").decode())


def listen(addresses, seconds):
    """Return the numbers in each message that ZeroMQ sockets publish, in order; none for a message that is not a pickle."""
    context, poller, names, found = zmq.Context(), zmq.Poller(), {}, {address: [] for address in addresses}
    for address in addresses:
        subscriber = context.socket(zmq.SUB)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.connect(f"tcp://{address}")
        poller.register(subscriber, zmq.POLLIN)
        names[subscriber] = address
    print("listening", file=sys.stderr, flush=True)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for subscriber, _ in poller.poll(left * 1000):
            found[names[subscriber]] += [_numbers(part) for part in subscriber.recv_multipart()]
    context.destroy(linger=0)
    return found


def _numbers(part):
    found = []
    with contextlib.suppress(ValueError):
        found += (argument for _, argument, _ in pickletools.genops(part) if type(argument) is int)
    return found


def _http(address, port):
    connection = http.client.HTTPConnection(address, port, timeout=3)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None, ""
    finally:
        connection.close()


def _grpc(address, port):
    found = {}
    with grpc.insecure_channel(f"{address}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=2)
        except grpc.FutureTimeoutError:
            return found
        for call in CALLS:
            try:
                channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=3)
                found[call] = "OK"
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    found[call] = error.code().name
    return found


if __name__ == "__main__":
    # The user may not be able to read the interpreter's folder: a first try at a closed port loads all lazy modules.
    knock("localhost", 9), _http("localhost", 9), _grpc("localhost", 9), _store("localhost", 9)
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
    if sys.argv[2].isdigit():
        found = listen(sys.argv[3:], float(sys.argv[2]))
    else:
        with ThreadPoolExecutor(16) as pool:
            addresses = [word.rpartition(":") for word in sys.argv[2:]]
            answers = pool.map(lambda address: knock(address[0], int(address[2])), addresses)
            found = dict(zip(sys.argv[2:], answers, strict=False))
    print(json.dumps(found), flush=True)
    os._exit(0)  # ends despite waiting threads
