"""cuda_repository: the external repository @cuda, made from what third_party/cuda/find_cuda.sh finds on this machine.

Its targets are for //third_party/{cuda,nccl,cudnn_frontend} only. Headers are linked into it, libraries are linked by path with a
run-time path to their folder, so that binaries in the build tree start; `tools/package` has a wrapper for other machines. Without a
complete toolkit every target is an error that says what is missing, and nobody asks for one unless --config=cuda is given.
"""

_TARGETS = ["toolkit", "cudart", "nvtx", "cublaslt", "cudnn", "nccl", "cudnn_frontend"]

_HEADER = """load("@//third_party/cuda:toolkit.bzl", "cuda_toolkit", "missing_toolkit")

package(default_visibility = ["@//third_party:__subpackages__"])
"""

_TOOLKIT = """
cuda_toolkit(
    name = "toolkit",
    nvcc = "{nvcc}",
    include = "{cudart_include}",
    host_compiler = "{host_compiler}",
    stamp = "found.txt",
)

cc_library(
    name = "cudart",
    hdrs = glob(["cudart/**/*.h", "cudart/**/*.hpp", "cudart/crt/**", "cudart/nv/**"], exclude = ["cudart/cccl/**"], allow_empty = True),
    {cudart_includes}
    linkopts = ["{cudart_lib}", "-ldl", "-lrt", "-lpthread"],
)
"""

_NVTX = """
cc_library(
    name = "nvtx",
    hdrs = glob(["nvtx/**"], allow_empty = True),
    {includes}
    linkopts = ["-ldl"],
)
"""

_LIBRARY = """
cc_library(
    name = "{name}",
    hdrs = glob(["{name}/**"], allow_empty = True),
    {includes}
    linkopts = ["{lib}", "-Wl,-rpath,{folder}"],
    deps = [":cudart"],
)
"""

_FRONTEND = """
cc_library(
    name = "cudnn_frontend",
    hdrs = glob(["cudnn_frontend/**"]),
    includes = ["cudnn_frontend"],
    deps = [":cudnn"],
)
"""

_MISSING = """
missing_toolkit(
    name = "{name}",
    what = {what},
)
"""

# The headers of a library that shares its folder with others, by how their names start.
_HEADERS = {
    "cublaslt": ["cublasLt.h", "cublas_api.h"],
    "cudnn": ["cudnn"],
    "nccl": ["nccl"],
    "nvtx": ["nvtx3"],
}

def _includes(rctx, name, folder, prefixes):
    """Links headers of `folder` into the folder `name`; returns the attribute that names it. /usr/include needs neither."""
    if folder == "/usr/include":
        return ""
    if prefixes == None:
        rctx.symlink(folder, name)
    else:
        for entry in rctx.path(folder).readdir():
            if [prefix for prefix in prefixes if entry.basename.startswith(prefix)]:
                rctx.symlink(entry, name + "/" + entry.basename)
    return "includes = [\"%s\"]," % name

def _cuda_repository_impl(rctx):
    result = rctx.execute([rctx.path(rctx.attr.finder)], environment = {"LC_ALL": "C"})
    lines = [line for line in result.stdout.splitlines() if "=" in line]
    found = {line.partition("=")[0]: line.partition("=")[2] for line in lines}
    rctx.file("found.txt", result.stdout)
    host_compiler = rctx.which("g++")
    missing = [line[len("missing="):] for line in lines if line.startswith("missing=")]
    if result.return_code != 0 or host_compiler == None:
        missing = missing or ["find_cuda.sh failed: " + result.stderr] + ([] if host_compiler else ["g++"])
        rctx.file("BUILD", _HEADER + "".join([_MISSING.format(name = name, what = repr(missing)) for name in _TARGETS]))
        return
    build = _HEADER + _TOOLKIT.format(
        host_compiler = host_compiler,
        cudart_includes = _includes(rctx, "cudart", found["cudart_include"], None),
        **found
    )
    build += _NVTX.format(includes = _includes(rctx, "nvtx", found["nvtx_include"], _HEADERS["nvtx"]))
    for name in ["cublaslt", "cudnn", "nccl"]:
        build += _LIBRARY.format(
            name = name,
            includes = _includes(rctx, name, found[name + "_include"], _HEADERS[name]),
            lib = found[name + "_lib"],
            folder = found[name + "_lib"].rpartition("/")[0],
        )
    rctx.symlink(found["cudnn_frontend_include"], "cudnn_frontend")
    rctx.file("BUILD", build + _FRONTEND)

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    attrs = {"finder": attr.label(default = "//third_party/cuda:find_cuda.sh", allow_single_file = True)},
    environ = ["CUDA_HOME", "HOME", "XDG_CACHE_HOME"],
    configure = True,
    local = True,
)
