"""The names in vLLM's table of request functions; the stand-in client sends its requests itself."""


async def async_request_openai_completions(request_func_input, session, pbar=None):
    raise NotImplementedError("the stand-in client sends its requests itself")


ASYNC_REQUEST_FUNCS = dict.fromkeys(("openai", "openai-chat"), async_request_openai_completions)
OPENAI_COMPATIBLE_BACKENDS = ["openai"]
