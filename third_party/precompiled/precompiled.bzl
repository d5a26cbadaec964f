"""precompiled_header: headers that g++ reads once instead of once per source."""

# What a source reads if g++ did not take the precompiled header. A warning, hence an error in our builds and none
# with a compiler that we do not build with; sanitizers' builds say no warnings.
_NOT_TAKEN = """
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#error g++ does not take {header}.gch: other options, or not in the deps
#else
#warning g++ does not take {header}.gch: other options, or not in the deps
#endif
"""

def precompiled_header(name, src, hdrs = [], deps = [], visibility = None, testonly = False):
    """A library with the header <name>.h and g++'s <name>.h.gch, which has what `src` includes.

    A source whose command line says `-include <package>/<name>.h` (.bazelrc says which do) gets the latter, if g++ finds that
    it was made with the same options: its own check, -Winvalid-pch, an error in our builds. `src` is compiled as a source of any library
    is, hence with the options that .bazelrc has for its path. Options that g++ does not compare are optimisation levels: `src` needs the
    level of its users, hence several of these headers.

    Who reads <name>.h itself is told that it was not taken.

    Bazel compiles a source again where a file has changed that g++ says it has read. Of a precompiled header g++ names none, unless
    -fpch-deps asks for the files that it was made of: needed wherever one of these is ours. tests/build/style_test.py looks for it.

    Args:
      name: of the library and the header.
      src: a source that includes the headers.
      hdrs: what of ours it includes.
      deps: the libraries whose headers it includes.
      visibility: as of any target.
      testonly: as of any target.
    """
    native.cc_library(
        name = name + "_object",
        testonly = testonly,
        srcs = [src] + hdrs,
        deps = deps,
        copts = ["-xc++-header"],
        tags = ["manual"],
    )
    native.filegroup(
        name = name + "_gch",
        testonly = testonly,
        srcs = [":" + name + "_object"],
        output_group = "compilation_outputs",
        tags = ["manual"],
    )
    native.genrule(
        name = name + "_copy",
        testonly = testonly,
        srcs = [":" + name + "_gch"],
        outs = [name + ".h.gch"],
        cmd = "ln $< $@ 2>/dev/null || cp $< $@",
        tags = ["manual"],
    )
    native.genrule(
        name = name + "_header",
        testonly = testonly,
        outs = [name + ".h"],
        cmd = "cat >$@ <<'END'\n// See precompiled.bzl." + _NOT_TAKEN.format(header = native.package_name() + "/" + name + ".h") + "\nEND",
        tags = ["manual"],
    )
    native.cc_library(
        name = name,
        testonly = testonly,
        deps = deps,
        hdrs = [
            name + ".h",
            name + ".h.gch",
        ],
        textual_hdrs = [src],  # g++ says that its users depend on it
        visibility = visibility,
    )
