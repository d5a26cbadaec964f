"""unity_library: a library whose sources g++ compiles as one."""

def unity_library(name, srcs, hdrs = [], deps = [], visibility = None, **kwargs):
    """A cc_library, compiled as one source that includes those in `srcs`.

    Half of what a small source takes is headers and the templates in them, which these have in common and g++ then reads and
    forms once. For the sources of a folder that a first build waits for; one that is edited is compiled with the others. Apart
    from them stay those with other options or other users, and those that another folder lies between. Names in the unnamed
    namespaces of the sources must differ, and a source must still include what it uses: tests/build/includes_test.py looks at
    each alone.

    .bazelrc's options for files are those of the path <package>/<name>_unity.cc.

    Args:
      name: of the library.
      srcs: its sources, and headers that are its own.
      hdrs: as of cc_library.
      deps: as of cc_library.
      visibility: as of cc_library.
      **kwargs: as of cc_library.
    """
    sources = [s for s in srcs if s.endswith(".cc")]
    lines = ["echo '#include \"%s/%s\"'" % (native.package_name(), s) for s in sources]
    native.genrule(
        name = name + "_unity",
        outs = [name + "_unity.cc"],
        cmd = "{ " + "; ".join(lines) + "; } >$@",
    )
    native.cc_library(
        name = name,
        srcs = [name + "_unity.cc"] + [s for s in srcs if not s.endswith(".cc")],
        hdrs = hdrs,
        textual_hdrs = sources,
        visibility = visibility,
        deps = deps,
        **kwargs
    )
