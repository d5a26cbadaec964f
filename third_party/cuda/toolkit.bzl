"""The CUDA toolkit of this machine as rules of the external repository @cuda (third_party/cuda/repository.bzl writes its BUILD file)."""

CudaToolkitInfo = provider(
    doc = "What compiling a .cu file needs.",
    fields = {
        "nvcc": "path of the compiler",
        "include": "folder of the runtime's headers; nvcc knows its own, but pip's split packages keep them elsewhere",
        "host_compiler": "path of the C++ compiler for host code",
        "stamp": "file that changes with the toolkit's versions and places",
    },
)

def _cuda_toolkit_impl(ctx):
    return [CudaToolkitInfo(
        nvcc = ctx.attr.nvcc,
        include = ctx.attr.include,
        host_compiler = ctx.attr.host_compiler,
        stamp = ctx.file.stamp,
    )]

cuda_toolkit = rule(
    implementation = _cuda_toolkit_impl,
    attrs = {
        "nvcc": attr.string(mandatory = True),
        "include": attr.string(mandatory = True),
        "host_compiler": attr.string(mandatory = True),
        "stamp": attr.label(allow_single_file = True, mandatory = True),
    },
)

def _missing_impl(ctx):
    fail("\n".join([
        "--config=cuda, but the CUDA toolkit is not complete here. Missing:",
    ] + ["  " + line for line in ctx.attr.what] + [
        "Set CUDA_HOME or install what is missing, or build without --config=cuda for the CPU backend only.",
    ]))

missing_toolkit = rule(
    doc = "Stands in for a target of the toolkit where there is none: an error for whoever builds it, nothing for everyone else.",
    implementation = _missing_impl,
    attrs = {"what": attr.string_list()},
)
