"""Run by the model environment's interpreter: vLLM's own client reads an answer that the network has cut at awkward places.

usage: python split_chunks.py IN_MODEL_ENV mended|as-it-is

Prints {"success": ..., "text": ..., "tokens": ...} as the last line.
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
    b' two"}]}\n\nda',
    b'ta: {"choices":[{"text":" three"}]}\n\n',
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


async def ask(requests):
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    given = requests.RequestFuncInput(
        prompt="x", api_url=f"http://127.0.0.1:{port}/v1/completions", prompt_len=1, output_len=3, model="tiny"
    )
    async with aiohttp.ClientSession() as session:
        found = await requests.async_request_openai_completions(given, session)
    await runner.cleanup()
    return {"success": found.success, "text": found.generated_text, "tokens": found.output_tokens}


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    import bench_client

    if sys.argv[2] == "mended":
        bench_client.when_imported(bench_client.REQUESTS, bench_client.unstripped)
    import vllm.benchmarks.lib.endpoint_request_func as requests

    print(json.dumps(asyncio.run(ask(requests))))
