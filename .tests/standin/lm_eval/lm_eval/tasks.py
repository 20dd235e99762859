"""A stand-in for lm-eval's list of tasks: gsm8k, arc_easy, and the tag ai2_arc."""


class TaskManager:
    all_tasks = ("ai2_arc", "arc_easy", "gsm8k")
    all_tags = ("ai2_arc",)
