"""What vLLM prints into a server's log, read back."""

import pytest

from servemark.verification.server_log import read

CONFIGURATION = "{'pass_config': {'fuse_allreduce_rms': False}, 'dynamic_shapes_config': {'type': <DynamicShapesType.BACKED: 'backed'>}}"


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("{'port': 1, 'dtype': 'bfloat16'}", {"port": 1, "dtype": "bfloat16"}),
        (
            f"{{'port': 1, 'compilation_config': {CONFIGURATION}, 'max_num_seqs': 512}}",
            {
                "port": 1,
                "compilation_config": {"pass_config": {"fuse_allreduce_rms": False}, "dynamic_shapes_config": {"type": "backed"}},
                "max_num_seqs": 512,
            },
        ),
        ("{'port': 1, 'kv_transfer_config': KVTransferConfig(kv_role='kv_both'), 'max_num_seqs': 512}", {"port": 1, "max_num_seqs": 512}),
        ("{'port': 1, 'dtype': torch.bfloat16}", {"port": 1}),
        ("{'port': 1, 'object': <Some object at 0x7f12>}", {}),
    ],
)  # fmt: skip
def test_printed_arguments_are_read_as_far_as_python_can(printed, expected):
    assert read(printed) == expected
