"""Read a stream that the network split at awkward places, with vLLM's request function and with ours. For the model environment.

usage: python split_chunks.py FOLDER_OF_BENCH_CLIENT

Prints {"plain": {"success": ..., "text": ..., "tokens": ...}, "ours": {...}} as the last line.
"""

import asyncio
import json
import sys

import aiohttp
from aiohttp import web

PIECES = [
    b"data:",
    b' {"choices":[{"text":"one ',
    b'"}]}\n',
    b'\ndata: {"choices":[{"text":"',
    b' two"}]}\n\n: ping\n\nda',
    b'ta: {"choices":[{"text":" three"}]}\n\n: ping\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":1}}',
    b"\n\ndata: [DONE]\n\n",
]


async def answer(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in PIECES:
        await response.write(piece)
        await asyncio.sleep(0.05)
    return response


async def ask(table, functions):
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/completions"
    given = table.RequestFuncInput(prompt="x", api_url=url, prompt_len=1, output_len=3, model="tiny", request_id="measured")
    async with aiohttp.ClientSession() as session:
        found = await asyncio.gather(*(function(given, session) for function in functions))
    await runner.cleanup()
    return [{"success": one.success, "text": one.generated_text, "tokens": one.output_tokens} for one in found]


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    import bench_client
    import vllm.benchmarks.lib.endpoint_request_func as table

    plain = table.ASYNC_REQUEST_FUNCS["openai"]
    ours = bench_client.request_function(plain, None, None, None)
    print(json.dumps(dict(zip(("plain", "ours"), asyncio.run(ask(table, [plain, ours])), strict=True))))
