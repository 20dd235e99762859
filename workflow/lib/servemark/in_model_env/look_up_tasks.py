"""Print as JSON which tasks lm-eval does not have, and which are tags: lists of tasks without a result of their own.

usage: python look_up_tasks.py TASK...

The line begins with ``servemark:``, because lm-eval prints lines too.
"""

import json
import sys

from lm_eval.tasks import TaskManager

manager, asked = TaskManager(), set(sys.argv[1:])
print("servemark:", json.dumps({"missing": sorted(asked - set(manager.all_tasks)), "tags": sorted(asked & set(manager.all_tags))}))
