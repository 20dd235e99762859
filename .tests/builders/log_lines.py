"""Log lines of each row of the catalogue of causes, for tests."""

STAMP = "11-20 12:00:00 [core.py:1]"

# id of the row -> lines as the programs write them, shortened and with invented values
LINES = {
    "1": ["RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update"],
    "2": ["ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"],
    "3": ["AssertionError: Torch not compiled with CUDA enabled", "RuntimeError: Failed to infer device type"],
    "4": [
        "ERROR 11-23 05:11:04 [core.py:1510] FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "/bin/sh: 1: ninja: not found",
    ],
    "4b": ["RuntimeError: Could not find nvcc and default cuda_home", "sh: 1: /usr/local/cuda/bin/nvcc: not found"],
    "4c": ['a.h:41:6: error: #error "CUDA compiler and CUDA toolkit headers are incompatible, please check your"'],
    "4d": ["ninja: build stopped: subcommand failed."],
    "5": ["ImportError: Failed to import Ray: No module named 'ray'", "bash: ray: command not found"],
    "6": ["ValueError: current platform cpu does not support ray."],
    "7": ["ValueError: World size (8) is larger than the number of available GPUs (4) in this node."],
    "8": [f"WARNING {STAMP} Unknown vLLM environment variable detected: VLLM_USE_RAY_SPMD_WORKER"],
    "9": [
        f"WARNING {STAMP} The number of required GPUs exceeds the total number of available GPUs",
        f"INFO {STAMP} Waiting for creating a placement group of specs for 10 seconds. specs=[{{'GPU': 1.0}}]",
    ],
    "10": ["ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}]"],
    "11": ["Error: No available node types can fulfill resource request {'node:10.0.0.1': 0.001, 'GPU': 1.0}"],
    "12": ["RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids"],
    "13": [f"DEBUG {STAMP} Waiting for 1 local, 0 remote core engine proc(s) to start."],
    "14": [f"INFO {STAMP} No available shared memory broadcast block found in 60 seconds."],
    "15": ["TimeoutError: Timed out waiting for engine core processes to start. x"],
    "16": ["RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': 1}"],
    "17": ["torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined."],
    "18": ["The client socket has timed out after 20000ms while trying to connect to (10.0.0.1, 29501)."],
    "19": [
        "RuntimeError: Gloo connectFullMesh failed with [..]",
        "RuntimeError: Unable to resolve hostname to a (local) address",
    ],
    "20": ["RuntimeError: [enforce fail at gloo] Unable to find address for: ^eth"],
    "21": ["node1:1:1 [0] NCCL WARN Bootstrap : no socket interface found"],
    "22": ["node1:1:1 [0] NCCL INFO Using network Socket", "node1:1:1 NCCL INFO NET/Socket : Using [0]eth0"],
    "23": [
        "NCCL WARN NET/OFI Couldn't start: No eligible providers were found",
        "NCCL WARN Failed to initialize any NET plugin",
    ],
    "24": [f"(Worker pid=7) INFO {STAMP} vLLM is using nccl==2.28.9"],
    "25": [f"WARNING {STAMP} SymmMemCommunicator: symmetric memory initialization failed: x"],
    "27": ["ValueError: Free memory on device cuda:0 is less than desired GPU memory utilization"],
    "28": [
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "ValueError: (9.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB))",
    ],
    "29": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
    "30": [
        f"ERROR {STAMP} Engine core proc EngineCore died unexpectedly, shutting down client.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ],
    "31": ["    assert self.intermediate_tensors is not None"],
    "33": ["[W] recvValue failed on SocketImpl(fd=3): Connection reset. Did the remote server shutdown or crash?"],
    "35": [
        "OSError: [Errno 98] Address already in use",
        "ERROR: [Errno 98] error while binding: Address already in use",
    ],
    "36": ["RuntimeError: Failed to start GCS. Last 0 lines of error files:"],
    "37": ["Exception: The current node timed out during startup. This could happen because"],
    "38": ["ValueError: Ray component gcs_server is trying to use a port number 1 that is used by other components."],
    "39": ["Ray is already started on this node."],
    "40": ["Failed to start Ray on this node.", "Error: No such option: --foo"],
    "41": ["Timed out waiting for other nodes to start.", "Timed out waiting for head node to start."],
    "42": ["OSError: validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /x"],
    "43": [
        "ray.exceptions.AuthenticationError: InvalidAuthToken: wrong",
        "Token authentication is enabled but no authentication token",
    ],
    "44": ["ConnectionError: Failed to connect to Ray cluster at 10.0.0.1:6379"],
    "45": [
        "[2026-11-20] Timed out while waiting for GCS to become available.",
        "Failed to connect to GCS at address 10.0.0.1:1",
    ],
    "46": ["Failed to make request to http://127.0.0.1:8265/api/v0/nodes."],
    "47": ["RuntimeError: Version mismatch: The cluster was started with:", "RuntimeError: Ray version mismatch"],
    "48": ["Some Ray subprocesses exited unexpectedly:"],
    "49": [
        "Task was killed due to the node running low on memory.",
        "ray.exceptions.OutOfMemoryError: Task was killed",
    ],
    "50": ["OpenBLAS blas_thread_init: pthread_create failed: Resource temporarily unavailable"],
    "51": [
        f"WARNING {STAMP} Found ulimit of 20000 and failed to automatically increase with error x. This can cause "
        "fd limit errors like `OSError: [Errno 24] Too many open files`."
    ],
    "51b": ["OSError: [Errno 24] Too many open files"],
    "52": ["WARNING: The object store is using /tmp/ray instead of /dev/shm because /dev/shm has only 67108864 bytes"],
    "52b": ["OSError: [Errno 28] No space left on device", "Bus error (core dumped)"],
    "52c": ["OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache/x'"],
    "52d": ["OSError: [Errno 30] Read-only file system: '/tmp/x'"],
    "53": ["openai_harmony.HarmonyError: invalid tiktoken vocab file: No such file or directory"],
    "54": [
        "huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars, '-', '_' or '.'",
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/x'.",
        "RuntimeError: Cannot find any model weights with `/models/x`",
    ],
    "55": ["ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4)."],
    "56": ["Failed requests:                         3         "],
    "57": ["WARNING: tokenizer mismatch (server=70, expected=64), re-aligning prompts."],
    "58": ["ValueError: Initial test run failed - Please make sure benchmark arguments are correctly specified. Error: x"],
    "59": ["srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)"],
    "61": ["2026-11-20 12:00:00,000\tINFO worker.py:1841 -- Started a local Ray instance."],
    "62": ["RuntimeError: CUDA error: invalid device ordinal", "RuntimeError: No CUDA GPUs are available"],
    "63": [f"INFO {STAMP} Waiting for READY message from DP Coordinator..."],
    "65": ["AssertionError: collective_rpc should not be called on follower node"],
    "66": [f"INFO {STAMP} Auto-prefetch is disabled because the filesystem (EXT4) is not a recognized network FS"],
    "67": [
        "vllm serve: error: unrecognized arguments: --foo",
        "vllm: error: argument x",
        "main.py: error: unrecognized arguments: --foo",
    ],
    "68": ["slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been OOM Killed."],
    "69": ["slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-20T12:00:00 DUE TO TIME LIMIT ***"],
    "70": [
        "  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len (max_position_embeddings=4096.0"
    ],
    "71": [
        "(raylet, ip=10.77.0.12) [2026-11-21 20:13:09,062 E 682 707] (raylet) agent_manager.cc:87: The raylet exited "
        "immediately because one Ray agent failed, agent_name = dashboard_agent."
    ],
    "72": [
        "(raylet) The node with node id: be486b and address: 10.77.0.12 and node name: 10.77.0.12 has been marked dead "
        "because the detector has missed too many heartbeats from it."
    ],
    "73": ["    assert n_token <= self.max_num_tokens"],
    "76": ["RuntimeError: open shm in SHMManager failed. errno: 2"],
    "79": [f"(Worker pid=7) ERROR {STAMP} torch._inductor.exc.InductorError: ImportError: /cache/so/csoudw2h.main.so: file too short"],
    "78": [
        f"(VllmWorker-0 pid=7) ERROR {STAMP} ValueError: Available memory on node 0 (21.44/23.54 GiB) on startup is less than desired CPU "
        "memory utilization (0.92, 21.66 GiB)."
    ],
    "77": ["RuntimeError: create shm in SHMManager failed. errno: 17"],
}

# Nothing is logged: a stage detects the state and looks up the row.
STATE_ONLY = {"26", "32", "34", "60", "64", "74", "75"}
