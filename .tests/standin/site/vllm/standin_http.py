"""The stand-in's HTTP part: vLLM's routes, the OpenAI stream format, metrics, and faults of requests."""

import importlib
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
import zlib
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vllm import standin_log as log
from vllm.standin_faults import fault, number

VOCABULARY = 1024
FINISHED = ("stop", "length", "abort", "error", "repetition")  # vLLM's finish reasons, in its order


class Middleware:
    """An ASGI middleware (``--middleware module.Class``) in front of a server that is not ASGI.

    Its ``receive`` has no body and it may not wait, which is enough for a check of headers.
    """

    def __init__(self, dotted):
        module, name = dotted.rsplit(".", 1)
        self.middleware = getattr(importlib.import_module(module), name)(self._pass)

    @staticmethod
    async def _pass(scope, receive, send):
        scope["passed"] = True

    def refusal(self, handler):
        """Return None if the middleware passed the request on; else its response: status, headers, body."""
        path = handler.path.partition("?")[0]
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in handler.headers.items()]
        scope = {"type": "http", "method": handler.command, "path": path, "headers": headers}
        sent = []

        async def send(message):
            sent.append(message)

        try:
            self.middleware(scope, None, send).send(None)
            raise RuntimeError("the middleware waits for something")
        except StopIteration:
            if scope.get("passed"):
                return None
        return sent[0]["status"], sent[0]["headers"], sent[1].get("body", b"")


class State:
    """State shared by all requests."""

    def __init__(self, args):
        self.names = args.served_model_name or [args.model]
        self.key = args.api_key[0] if args.api_key else os.environ.get("VLLM_API_KEY")
        self.middleware = [Middleware(dotted) for dotted in args.middleware or ()]
        self.max_model_len = args.max_model_len
        self.seats = args.max_num_seqs
        self.slots = threading.Semaphore(args.max_num_seqs)
        self.lock = threading.Lock()
        self.counts = {
            "asked": 0,
            "running": 0,
            "waiting": 0,
            "prompt": 0,
            "generated": 0,
            **dict.fromkeys(FINISHED, 0),
            "ttft_count": 0,
            "ttft_s": 0.0,
        }
        self.streams = itertools.count(1)
        self.dead = threading.Event()

    def add(self, **changes):
        with self.lock:
            for name, change in changes.items():
                self.counts[name] += change
            return self.counts["asked"]


def token_ids(prompt):
    """Return the token ids of a prompt: the prompt itself if it is numbers, else one per word (``t17`` is token 17)."""
    if isinstance(prompt, list):
        return prompt
    return [int(word[1:]) if word[:1] == "t" and word[1:].isdigit() else zlib.crc32(word.encode()) % VOCABULARY for word in prompt.split()]


def wait_while_hanging():
    while fault()[0] == "hang":
        time.sleep(0.05)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # without this, each small chunk waits for an acknowledgement
    state: State

    def log_message(self, format, *args):
        status = HTTPStatus(int(args[1]))
        address, port = self.client_address[:2]
        log.plain(f'INFO:     {address}:{port} - "{self.requestline}" {status.value} {status.phrase}')

    def reply(self, status, body, content_type="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.answer(status, ((b"Content-Type", content_type.encode()), (b"Content-Length", str(len(data)).encode())), data)

    def answer(self, status, headers, data):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name.decode(), value.decode())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status, message):
        self.reply(status, {"error": {"message": message, "type": "standin", "param": None, "code": status}})

    def admitted(self):
        wait_while_hanging()
        for middleware in reversed(self.state.middleware):  # as in vLLM: the last one named runs first
            if refused := middleware.refusal(self):
                self.answer(*refused)
                return False
        guarded = self.path.startswith("/v1")
        if self.state.key and guarded and self.headers.get("Authorization") != f"Bearer {self.state.key}":
            self.reply(401, {"error": "Unauthorized"})
        elif self.state.dead.is_set():
            self.refuse(503, "EngineDeadError")
        else:
            return True
        return False

    def names(self):
        return ["standin-wrong-name"] if fault()[0] == "wrong_name" else self.state.names

    def do_GET(self):
        if not self.admitted():
            return
        if self.path in ("/health", "/ping"):
            self.reply(200, "", "text/plain")
        elif self.path == "/version":
            self.reply(200, {"version": "0.0.0+standin"})
        elif self.path == "/v1/models":
            card = {"object": "model", "owned_by": "standin", "max_model_len": self.state.max_model_len}
            self.reply(200, {"object": "list", "data": [{"id": name, **card} for name in self.names()]})
        elif self.path == "/metrics":
            self.reply(200, metrics(self.state), "text/plain; version=0.0.4")
        else:
            self.refuse(404, "Not Found")

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.admitted():
            return
        body = json.loads(data or b"{}")
        if self.path == "/tokenize":
            ids = token_ids(body["prompt"])
            self.reply(200, {"tokens": ids, "count": len(ids), "max_model_len": self.state.max_model_len})
        elif self.path == "/detokenize":
            self.reply(200, {"prompt": " ".join(f"t{i}" for i in body["tokens"])})
        elif self.path == "/v1/completions":
            self.complete(body)
        elif self.path == "/v1/chat/completions":
            most = body.get("max_completion_tokens") or body.get("max_tokens")
            self.complete(body | {"prompt": chat_prompt(body["messages"]), "max_tokens": most}, chat=True)
        else:
            self.refuse(404, "Not Found")

    def do_other(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.admitted():
            self.refuse(405, "Method Not Allowed")

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_other

    def complete(self, body, chat=False):
        state, (name, value) = self.state, fault()
        asked = state.add(asked=1)
        if name == "die_after" and asked > value:
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "fail_requests" and asked % max(int(value), 1) == 0:
            self.refuse(500, "stand-in fault fail_requests")
            return
        if body.get("model") not in self.names():
            self.refuse(404, f"The model `{body.get('model')}` does not exist.")
            return
        prompt_tokens, asked_tokens = len(token_ids(body["prompt"])), int(body.get("max_tokens") or 16)
        if prompt_tokens + asked_tokens > state.max_model_len:
            self.refuse(400, f"This model's maximum context length is {state.max_model_len} tokens.")
            return
        count = {"zero_tokens": 0, "short_tokens": asked_tokens // 2}.get(name, asked_tokens)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count, "total_tokens": prompt_tokens + count}
        state.add(waiting=1, prompt=prompt_tokens)
        reason = "length" if count == asked_tokens else "stop"
        finished = []

        def finish(reason):
            # Like vLLM before the client has the last bytes: it may then ask for the metrics at once.
            if not finished:
                finished.append(reason)
                state.add(running=-1, **{reason: 1})

        with state.slots:
            state.add(waiting=-1, running=1)
            try:
                if body.get("stream"):
                    self.stream(body, asked_tokens, count, usage, chunk_of_chat if chat else completion, lambda: finish(reason))
                else:
                    text = "".join(self.tokens(count))
                    finish(reason)
                    self.reply(200, (chat_completion if chat else completion)(body, text, reason, usage))
            except (BrokenPipeError, ConnectionResetError):
                finish("abort")
                self.close_connection = True  # the client closed the connection; vLLM aborts such a request silently
            finally:
                finish(reason)

    def tokens(self, count):
        """Yield ``count`` made-up words at the stand-in's pace; end early if the engine dies."""
        pace, capacity, begin = number("STANDIN_TOKEN_S", 0.002), number("STANDIN_CAPACITY", math.inf), time.monotonic()
        for index in range(count):
            time.sleep(pace * max(1.0, self.state.counts["running"] / capacity))
            wait_while_hanging()
            if self.state.dead.is_set():
                return
            self.state.add(generated=1, **({} if index else {"ttft_count": 1, "ttft_s": time.monotonic() - begin}))
            yield f" t{index % VOCABULARY}"

    def stream(self, body, asked, count, usage, completion, finish):
        name, value = fault()
        cut = name == "cut_streams" and next(self.state.streams) % max(int(value), 1) == 0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if count == 0:
            self.event(completion(body, "", "stop"))
        sent = 0
        for word in self.tokens(count):
            sent += 1
            if cut and sent > count // 2:
                break
            reason = None if sent < count else "length" if count == asked else "stop"
            self.event(completion(body, word, reason))
        if cut or sent < count:
            # The socket closes without the last chunk, as if the server or its engine died during a request.
            self.close_connection = True
            return
        finish()
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event({**completion(body, "", None), "choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, payload):
        self.chunk(b"data: " + json.dumps(payload).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def chat_prompt(messages):
    """Return the prompt of a conversation. One message gets 13 more words: as many tokens as the builtin models' template adds."""
    texts = [one["content"] if isinstance(one["content"], str) else " ".join(part["text"] for part in one["content"]) for one in messages]
    parts = [f"{'< ' * 5}{message['role']} {text} {'> ' * 2}" for message, text in zip(messages, texts, strict=True)]
    return " ".join([*parts, "< " * 4, "assistant"])


def chunk_of_chat(body, text, finish_reason):
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}
    return completion(body, text, finish_reason) | {"object": "chat.completion.chunk", "choices": [choice]}


def chat_completion(body, text, finish_reason, usage):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return completion(body, text, finish_reason, usage) | {"object": "chat.completion", "choices": [choice]}


def completion(body, text, finish_reason, usage=None):
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return {
        "id": f"cmpl-standin-{time.time_ns()}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": [choice],
        "usage": usage,
    }


def metrics(state):
    """Return the metrics of vLLM that servemark reads, in Prometheus' text format."""
    with state.lock:
        counts = dict(state.counts)
    labels = f'{{engine="0",model_name="{state.names[0]}"}}'
    rows = (
        ("gauge", "vllm:num_requests_running", counts["running"]),
        ("gauge", "vllm:num_requests_waiting", counts["waiting"]),
        ("gauge", "vllm:kv_cache_usage_perc", counts["running"] / state.seats),
        ("counter", "vllm:prompt_tokens_total", counts["prompt"]),
        ("counter", "vllm:generation_tokens_total", counts["generated"]),
        ("counter", "vllm:num_preemptions_total", 0),
    )
    text = "".join(f"# HELP {name} stand-in\n# TYPE {name} {kind}\n{name}{labels} {float(value)}\n" for kind, name, value in rows)
    served = "".join(
        f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{state.names[0]}"}} {float(counts[reason])}\n'
        for reason in FINISHED
    )
    ttft, count = "vllm:time_to_first_token_seconds", float(counts["ttft_count"])
    text += f'# HELP {ttft} stand-in\n# TYPE {ttft} histogram\n{ttft}_bucket{labels[:-1]},le="+Inf"}} {count}\n'
    text += f"{ttft}_count{labels} {count}\n{ttft}_sum{labels} {counts['ttft_s']}\n"
    return f"{text}# HELP vllm:request_success_total stand-in\n# TYPE vllm:request_success_total counter\n{served}"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2048

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
