"""Write checkpoints of small models with random weights. Runs in a model environment: make_tiny_models.py CONFIGS.json FOLDER.

CONFIGS.json has a config.json by name. Each model gets a folder with config.json and model.safetensors, as transformers writes them.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

configs, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
for name, config in configs.items():
    torch.manual_seed(0)
    shape = CONFIG_MAPPING[config["model_type"]](**config)
    model = AutoModelForCausalLM.from_config(shape).to(torch.bfloat16)
    model.save_pretrained(folder / name)
    print(name, sum(parameter.numel() for parameter in model.parameters()))
