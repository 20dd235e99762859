"""Count the experts that 64 random prompts reach in a decode step, in the first and in the last layer. For an environment with vLLM.

usage: python count_experts.py MODEL_FOLDER LOAD_FORMAT OUTPUT
"""

import json
import random
import sys

PROMPTS, TOP = 64, 4


def main(folder: str, load_format: str, output: str) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder,
        load_format=load_format,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=PROMPTS,
        skip_tokenizer_init=True,
    )
    reached: dict[str, list[int]] = {}

    def note(name):
        def hook(module, inputs, output):
            logits = output[0] if isinstance(output, tuple) else output
            if logits.shape[0] == PROMPTS:
                assert logits.isfinite().all()
                reached.setdefault(name, []).append(len(logits.float().topk(TOP, dim=-1).indices.unique()))

        return hook

    def watch(model):
        for name, module in model.named_modules():
            if name.rpartition(".")[2] == "router":
                module.register_forward_hook(note(name))

    llm.apply_model(watch)
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    draw = random.Random(1)
    prompts = [{"prompt_token_ids": [draw.randrange(vocabulary) for _ in range(32)]} for _ in range(PROMPTS)]
    asked = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)
    llm.generate(prompts, asked, use_tqdm=False)
    with open(output, "w") as stream:
        json.dump(list(reached.values()), stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
