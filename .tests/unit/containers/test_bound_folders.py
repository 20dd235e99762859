"""The folders of the host that a deployment's processes get in an image."""

import os
from types import SimpleNamespace

from builders import hub_cache
from builders.deployed import stage_context
from servemark.containers import entering
from servemark.records import Container

IMAGE = Container(image="/image", runtime="charliecloud", place="/image", digest="sha256:" + "0" * 64)


def in_image(binds, path):
    """Return the file of the host that a path names in the image: only bound folders exist there."""
    while True:
        bind = next((bind for bind in binds if path.startswith(f"{bind}/")), None)
        if bind is None or not os.path.islink(path):
            return os.path.realpath(path) if bind and os.path.isfile(path) else None
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def test_linked_files_of_a_hub_cache_behind_a_link_are_in_the_image(tmp_path, told):
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").mkdir()
    # As on many sites: the cache in the home folder is a link to a larger disk.
    (tmp_path / "home" / ".cache").symlink_to(tmp_path / "disk")
    snapshot = hub_cache.make(tmp_path / "home" / ".cache" / "hub")
    files = [SimpleNamespace(path=path.name) for path in snapshot.iterdir()]
    environment = SimpleNamespace(python="py", bytecode=None, container=IMAGE)
    manifest = SimpleNamespace(path=str(snapshot), files=files)
    context = stage_context(tmp_path, told, SimpleNamespace(), environment=environment, manifest=manifest)
    bound = context.container()
    inside = [place for bind in bound.binds for place in entering._places(bind)]
    for file in files:
        assert in_image(inside, str(snapshot / file.path)) == os.path.realpath(snapshot / file.path)


def test_folders_of_links_end_with_the_file(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert list(entering.stores(tmp_path / "a")) == [str(tmp_path)] * 2
    (tmp_path / "file").touch()
    assert list(entering.stores(tmp_path / "file")) == []
