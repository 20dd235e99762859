"""Run by the model environment's interpreter, as another user: try ports without any key or token, and print what each gives.

usage: python knock.py UID ADDRESS:PORT...           on standard output {ADDRESS:PORT: {connect, http, body, grpc, zmq, store}}
       python knock.py UID SECONDS ADDRESS:PORT...   subscribe to ZeroMQ sockets; {ADDRESS:PORT: [numbers in each pickle]}

``http``: status of ``GET /metrics``, or null for what speaks no HTTP. ``grpc``: Ray's responses to one harmless call of each of its
services, by status name; UNIMPLEMENTED (another service) is left out. ``zmq``: whether the port begins with ZeroMQ's greeting. ``store``:
what torch's TCPStore client reads after it wrote "written", or null. Nothing that arrives is unpickled.
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

# One call that changes nothing of each service (ray/src/ray/protobuf, 2.60); an empty message is a valid request of each.
CALLS = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "NodeManagerService/GetSystemConfig",
    "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats",
    "RayletDriver/ClusterInfo",
)


def knock(address, port):
    """What one port says to somebody without a key."""
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
    """Whether the port begins as ZeroMQ does (ZMTP 3.1, section 2.2: FF, eight bytes, 7F)."""
    try:
        with socket.create_connection((address, port), timeout=3) as connection:
            connection.settimeout(1)
            said = connection.recv(10)
            return len(said) == 10 and said[0] == 0xFF and said[9] == 0x7F
    except OSError:
        return False


def _store(address, port):
    found = []
    # Its constructor waits for ever where something else listens and says nothing.
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
    """The numbers of each message that ZeroMQ sockets publish, in their order; a message that is no pickle has none."""
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
    # The interpreter may lie where that user cannot read: what is loaded late is loaded by a first try, at a closed port.
    knock("localhost", 9), _http("localhost", 9), _grpc("localhost", 9), _store("localhost", 9)
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
    if sys.argv[2].isdigit():
        found = listen(sys.argv[3:], float(sys.argv[2]))
    else:
        with ThreadPoolExecutor(16) as pool:
            doors = [word.rpartition(":") for word in sys.argv[2:]]
            answers = pool.map(lambda door: knock(door[0], int(door[2])), doors)
            found = dict(zip(sys.argv[2:], answers, strict=False))
    print(json.dumps(found), flush=True)
    os._exit(0)  # past threads that wait
