"""The variables that name folders for code which servers compile."""

from __future__ import annotations

# Variable -> its folder, and the variables by which a user says the same thing. DeepGEMM's folder and the tunings of FlashInfer follow
# VLLM_CACHE_ROOT, and so does Inductor's for vLLM's own graphs: TORCHINDUCTOR_CACHE_DIR is for what is compiled outside of them, which
# goes to /tmp otherwise. The driver's own cache of PTX (CUDA_CACHE_PATH) stays where it is: wheels and Triton bring code for the GPU
# itself, and the driver locks one index file, which shared file systems are slow at.
VARIABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "VLLM_CACHE_ROOT": ("vllm", ("XDG_CACHE_HOME",)),
    "TORCHINDUCTOR_CACHE_DIR": ("inductor", ()),
    "TRITON_CACHE_DIR": ("triton", ("TRITON_HOME",)),
    "FLASHINFER_WORKSPACE_BASE": ("flashinfer", ()),
    "TILELANG_CACHE_DIR": ("tilelang", ()),
}
