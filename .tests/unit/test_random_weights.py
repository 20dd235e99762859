"""A server with random weights is given vLLM's plugin for them, and no other server is."""

from __future__ import annotations

import configparser
import os

from servemark import doors, random_weights

RANDOM = {"load-format": random_weights.LOAD_FORMAT}


def test_the_plugin_is_where_python_looks_beside_what_closes_the_doors():
    closed = doors.environment({"PYTHONPATH": "/own"})
    path = random_weights.environment(RANDOM, closed)["PYTHONPATH"].split(os.pathsep)
    assert path == [str(random_weights.FOLDER), str(doors.DOORS), "/own"]


def test_a_list_of_allowed_plugins_gets_it_too():
    assert (
        random_weights.environment(RANDOM, {"VLLM_PLUGINS": "site"})["VLLM_PLUGINS"]
        == f"site,{random_weights.LOAD_FORMAT}"
    )


def test_a_server_with_a_checkpoint_gets_nothing():
    assert random_weights.environment({}, {"PYTHONPATH": "/own"}) == {}


def test_its_entry_point_is_the_one_that_vllm_asks_for():
    (file,) = random_weights.FOLDER.glob("*.dist-info/entry_points.txt")
    points = configparser.ConfigParser()
    points.read(file)
    module, _, function = points["vllm.general_plugins"][random_weights.LOAD_FORMAT].partition(":")
    source = (random_weights.FOLDER / f"{module}.py").read_text()
    assert f"def {function}(" in source
    assert f'LOAD_FORMAT = "{random_weights.LOAD_FORMAT}"' in source
