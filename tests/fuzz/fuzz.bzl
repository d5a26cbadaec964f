"""fuzz_target: a parser or writer under hostile input, for libFuzzer and as an ordinary test."""

def fuzz_target(name, deps, replay_size = "small"):
    """Declares `name`, a library of name.cc, which defines LLVMFuzzerTestOneInput, and what runs it.

    <name>_replay_test runs it over corpus/<name>; <name>_fuzzer is libFuzzer's program, which
    tools/fuzz builds with --config=asan, from the objects of ASan's tests.

    Args:
      name: of the target, its source and its folder of inputs.
      deps: what it tests; :fuzz is added.
      replay_size: of the test.
    """
    native.cc_library(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        alwayslink = True,
        deps = deps + [":fuzz"],
    )
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        tags = ["manual"],
        deps = [
            ":" + name,
            ":libfuzzer",
        ],
    )
    native.cc_test(
        name = name + "_replay_test",
        size = replay_size,
        args = ["tests/fuzz/corpus/" + name],
        # Inputs are data that fuzzing adds to, not sources that someone must have meant to compile.
        data = native.glob(["corpus/" + name + "/**"]),
        tags = ["unit"],
        deps = [
            ":" + name,
            ":replay",
        ],
    )
