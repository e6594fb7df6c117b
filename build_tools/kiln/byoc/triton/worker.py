"""Compiles kernels of templates: the process that imports Triton. Requests and answers are lines of JSON.

A request: {"template": file, "kernel": function, "types": {parameter: type}, "constants": {parameter: value},
"archs": [90, …], "warps": n, "stages": n}; types are Triton's, such as *fp16 and i32. The answer:
{"ptx": [module for each architecture], "threads": of a block, "dynamic_bytes": of shared memory, the most of
any architecture}, or {"error": text}. The entry point is called SYMBOL.
"""

import importlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

_ALIGNED = [["tt.divisibility", 16]]  # every tensor begins at a multiple of 16 bytes


def compiled(request):
    """The answer to a request."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = importlib.import_module(f"templates.{request['template']}")
    kernel = getattr(module, request["kernel"])
    names = kernel.arg_names
    types, constants = request["types"], request["constants"]
    signature = {name: types.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): _ALIGNED for i, name in enumerate(names) if signature[name].startswith("*")}
    texts, shared, threads = [], 0, 0
    for arch in request["archs"]:
        source = ASTSource(kernel, signature, constexprs=values, attrs=aligned)
        options = {"num_warps": request["warps"], "num_stages": request["stages"]}
        program = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        facts = program.metadata
        if facts.global_scratch_size or facts.profile_scratch_size or facts.num_ctas != 1:
            raise ValueError("the kernel needs shared memory or a cluster that Kiln does not launch it with")
        text = re.sub(rf"\b{facts.name}(?=\b|_param)", "SYMBOL", program.asm["ptx"])
        # What remains of debugging names the folders of this machine.
        lines = [line for line in text.splitlines() if not re.match(r"\s*(\.loc|\.file|//)\b", line)]
        texts.append(
            re.sub(r"^\.section\s+\.debug.*?^\}\s*$", "", "\n".join(lines) + "\n", flags=re.M | re.S)
        )
        shared, threads = max(shared, facts.shared), 32 * facts.num_warps
    return {"ptx": texts, "threads": threads, "dynamic_bytes": shared}


def main():
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout is for replies: what the compiler prints goes to stderr
    with tempfile.TemporaryDirectory(prefix="kiln-triton-") as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for line in sys.stdin:
            try:
                answer = compiled(json.loads(line))
            except Exception as error:  # a compiler may raise anything
                answer = {"error": f"{type(error).__name__}: {str(error).strip()}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
