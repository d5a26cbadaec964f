"""cuda_library: .cu files compiled by nvcc, for the cc rules to link. Only with --config=cuda; else it is skipped, and with it all that
depends on it.

The architectures are those of --//third_party/cuda:arch, a comma-separated list: sm_90a is machine code for that architecture,
compute_90 is PTX that the driver compiles when it loads it.
"""

load(":toolkit.bzl", "CudaToolkitInfo")

# target_compatible_with of what makes sense with --config=cuda only and does not depend on a target of //third_party/cuda anyway.
CUDA_ONLY = select({
    "//third_party/cuda:enabled": [],
    "//conditions:default": ["//third_party/cuda:unavailable"],
})

# Everything but the architectures. No fast math: fp32 means fp32, and results do not depend on how a compiler reassociates.
# Host code in a .cu file sees the same warnings as a .cc file, nvcc's own stubs excepted.
_FLAGS = [
    "-std=c++20",
    "-O3",
    "--threads=1",
    "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-Wno-restrict",
    "--Werror=cross-execution-space-call,deprecated-declarations",
]

CudaArchInfo = provider(doc = "Value of the setting.", fields = {
    "flags": "of nvcc",
    "defines": "MILLRACE_SM_90A and the like, for what asks",
})

def _cuda_arch_impl(ctx):
    flags = []
    defines = []
    for arch in ctx.build_setting_value.split(","):
        kind, _, number = arch.partition("_")
        if kind not in ["sm", "compute"] or not number[:2].isdigit():
            fail("--%s=%s: %r is no architecture; allowed: sm_90a, compute_90 and the like, separated by commas" %
                 (str(ctx.label).lstrip("@"), ctx.build_setting_value, arch))
        flags.append("--generate-code=arch=compute_%s,code=%s" % (number, arch))
        defines.append("-DMILLRACE_%s" % arch.upper())
    return CudaArchInfo(flags = flags, defines = defines)

cuda_arch = rule(
    doc = "A build setting: the architectures to compile for.",
    implementation = _cuda_arch_impl,
    build_setting = config.string(flag = True),
)

def _compile(ctx, source, context, toolkit, feature_configuration):
    """One action: nvcc makes a position-independent object of `source`."""
    output = ctx.actions.declare_file("_cuda/%s/%s.pic.o" % (ctx.label.name, source.basename[:-len(".cu")]))
    arguments = ctx.actions.args()
    arguments.add_all(_FLAGS)
    arguments.add_all(ctx.attr._arch[CudaArchInfo].flags)
    if ctx.attr.defines_archs:
        arguments.add_all(ctx.attr._arch[CudaArchInfo].defines)
    arguments.add("-ccbin", toolkit.host_compiler)
    arguments.add("-I.")
    arguments.add_all(context.quote_includes, before_each = "-I")
    arguments.add_all(context.includes, before_each = "-I")
    arguments.add_all(context.system_includes, before_each = "-isystem")
    arguments.add("-isystem", toolkit.include)
    arguments.add_all(context.defines, before_each = "-D")
    arguments.add_all(ctx.attr.copts)
    arguments.add("-c", source)
    arguments.add("-o", output)
    ctx.actions.run(
        executable = toolkit.nvcc,
        arguments = [arguments],
        inputs = depset([source, toolkit.stamp], transitive = [context.headers]),
        outputs = [output],
        mnemonic = "NvccCompile",
        progress_message = "Compiling %s" % source.short_path,
        use_default_shell_env = True,
    )
    return output

def _cuda_library_impl(ctx):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    own = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs))
    context = cc_common.merge_cc_infos(
        cc_infos = [CcInfo(compilation_context = own)] + [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    linking = [dep[CcInfo].linking_context for dep in ctx.attr.deps]
    toolkit = ctx.attr._toolkit[CudaToolkitInfo]
    objects = depset([_compile(ctx, source, context, toolkit, features) for source in ctx.files.srcs])
    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(pic_objects = objects),
        linking_contexts = linking,
        alwayslink = True,  # nvcc registers a file's kernels from a static constructor that nothing refers to
        disallow_dynamic_library = True,
    )
    return [
        DefaultInfo(files = objects),
        CcInfo(compilation_context = context, linking_context = linking_context),
    ]

_cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "defines_archs": attr.bool(),
        "_arch": attr.label(default = "//third_party/cuda:arch"),
        "_toolkit": attr.label(default = "//third_party/cuda:toolkit"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], defines_archs = False, **kwargs):
    """Like cc_library, for .cu files: whole-program device code, always linked.

    Args:
      name: of the target.
      srcs: .cu files.
      hdrs: headers of `srcs` and of whoever depends on this; .cuh files that no other target needs go here, too.
      deps: cc or cuda libraries; the CUDA runtime is added.
      copts: for nvcc, after the flags that all files get.
      defines_archs: whether host code sees which architectures it is compiled for, as MILLRACE_SM_90A and the like.
      **kwargs: visibility, tags and other attributes that every rule has.
    """
    _cuda_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + ["//third_party/cuda:cudart"],
        copts = copts,
        defines_archs = defines_archs,
        target_compatible_with = CUDA_ONLY,
        **kwargs
    )
