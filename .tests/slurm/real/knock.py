"""Run by the model environment's interpreter, as a stranger: knock at ports, without any key or token, and say who answers.

usage: python knock.py UID ADDRESS:PORT...   (as that user; on standard output {ADDRESS:PORT: {connect, http, body, grpc}})

``http``: status of ``GET /metrics``, or null for what speaks no HTTP. ``grpc``: Ray's answers to one harmless call of each of its
services, by status name; UNIMPLEMENTED (another service) is left out.
"""

import http.client
import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

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
    return {"connect": True, "http": status, "body": body, "grpc": _grpc(address, port) if status is None else {}}


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
    # The interpreter may lie where that user cannot read: what is loaded late is loaded by a first knock, at a closed port.
    knock("localhost", 9), _http("localhost", 9), _grpc("localhost", 9)
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
    with ThreadPoolExecutor(16) as pool:
        doors = [word.rpartition(":") for word in sys.argv[2:]]
        answers = pool.map(lambda door: knock(door[0], int(door[2])), doors)
        print(json.dumps(dict(zip(sys.argv[2:], answers, strict=False))))
