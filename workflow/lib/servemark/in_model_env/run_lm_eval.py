"""Run lm-eval in the folder of a task, whose data files it names relative to this folder.

usage: python run_lm_eval.py FOLDER ARGUMENTS-OF-LM-EVAL
"""

import os
import runpy
import sys

os.chdir(sys.argv[1])
sys.argv = ["lm_eval", *sys.argv[2:]]
runpy.run_module("lm_eval", run_name="__main__", alter_sys=True)
