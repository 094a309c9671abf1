"""The GPU kernels against the definition, in Triton's interpreter, and compiled for two GPUs.

Skipped where Triton is not installed: torch's CPU wheels come without it (`pip install triton`).
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from model import backends

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: pip install triton"
)

CASES = """
import torch
from model.attention import Drop, plain_attention, sight
from model.backends import settle, triton_attention
from model.noise import Noise

def compare(H, B, L, M, E, dtype, seed, window=0, drop=None):
    source = torch.Generator().manual_seed(seed)
    K = M + L
    sizes = [(H, B, L, E), (H, B, L, E), (H, B, K, E), (H, B, K, E), (H, K + 1, E)]
    wide = [
        (torch.randn(size, generator=source) / E**0.25).to(dtype).double().requires_grad_()
        for size in sizes
    ]
    offset = torch.randint(0, K + 2, (B, L), generator=source)
    usable = torch.randint(0, M + 1, (B,), generator=source)
    seen = sight(offset, usable, memory=M, window=window)
    found = []
    for attend, given in (
        (plain_attention, wide),
        (triton_attention, [x.detach().to(dtype).requires_grad_() for x in wide]),
    ):
        qu, qv, k, v, r = given
        out = attend((qu, qv), k, v, r, seen, drop).double()
        found.append([out, *torch.autograd.grad(out.sin().sum(), given)])
    allowed = {torch.float32: 5e-6, torch.float16: 5e-3}[dtype]
    for one, other in zip(*found):
        assert (one - other).abs().max() <= allowed * (1 + one.abs().max()), (H, B, L, M, E, dtype)
    again = triton_attention((qu, qv), k, v, r, seen, drop)
    assert torch.equal(again.double(), out.detach()), "not the same bits twice"

for seed, (L, M, E, window) in enumerate(
    [(1, 0, 4, 0), (1, 33, 16, 0), (3, 0, 41, 0), (20, 13, 5, 7), (37, 50, 41, 0), (40, 3, 64, 0)]
):
    compare(2, 2, L, M, E, torch.float32, seed, window)
compare(1, 2, 37, 50, 41, torch.float16, 7)
compare(1, 1, 33, 16, 128, torch.float16, 8)
noise = Noise(seed=1, step=2, rows=torch.arange(2))
compare(2, 2, 5, 4, 8, torch.float32, 9, drop=Drop(rate=0.3, noise=noise, site=1))
settled = settle("triton", device=torch.device("cpu"), dtype=torch.float32, head_width=41)
assert settled.backend == "triton", settled
print("equal")
"""

COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from model import attention_triton

name, width, capability, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
kernel = getattr(attention_triton, name)
_, sizes = attention_triton._launch(512, 1, width)
options = {key: sizes.pop(key) for key in ("num_warps", "num_stages")}
kinds = {"LOG_SUM": "*fp32", "LEVEL": "*fp32", "FAR": "*i64", "B": "i32", "L": "i32", "K": "i32"}
names = kernel.arg_names
signature = {n: "constexpr" if n in sizes else kinds.get(n, "*bf16") for n in names}
constants = {(i,): sizes[n] for i, n in enumerate(names) if n in sizes}
aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n][0] == "*"}
source = ASTSource(kernel, signature, constants, aligned)
found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
open(out, "wb").write(found.asm["cubin"])
print(found.metadata.shared)
"""


def run(code: str, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_kernels_equal_the_definition_in_the_interpreter() -> None:
    assert run(CASES, TRITON_INTERPRET="1").endswith("equal\n")
    assert "triton" in backends.BACKENDS


# Shared memory that a program may take, in bytes: of an A100 and an H100.
SHARED = {80: 166_912, 90: 232_448}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("kernel", ["_forward", "_backward_queries", "_backward_keys"])
def test_a_kernel_compiles_for_a_gpu_and_does_not_spill_much(
    kernel: str, width: int, capability: int, tmp_path: Path
) -> None:
    import triton  # pyright: ignore[reportMissingImports]

    cubin = tmp_path / "kernel.cubin"
    shared = int(
        run(
            COMPILE, kernel, str(width), str(capability), str(cubin),
            TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path / "cache"),
        )
    )  # fmt: skip
    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True)
    usage = told.stdout + told.stderr
    stack = int(re.search(r"STACK:(\d+)", usage)[1])  # pyright: ignore[reportOptionalSubscript]
    assert shared <= SHARED[capability]
    assert stack <= 32, f"{stack} bytes of registers are spilled"
