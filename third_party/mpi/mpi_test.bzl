"""mpi_test: a Catch2 program that is itself an MPI program, run under mpirun."""

def mpi_test(name, srcs, ranks, deps = [], size = "small", tags = [], **kwargs):
    """Declares <name>_n<N> for each N in `ranks`: the program of `srcs` as N processes of one mpirun, more than cores or not.

    The sources define main(), which calls RunCatchSession (third_party/catch2/session.h) between MPI_Init and MPI_Finalize.

    Args:
      name: of the program, and the start of each test's name.
      srcs: sources, one with main().
      ranks: list of process counts.
      deps: libraries; //third_party/catch2:catch2_no_main and //third_party/mpi are added.
      size: as of any test.
      tags: as of any test; "mpi" and "exclusive" are added: ranks that poll would starve a test beside them.
      **kwargs: passed to the program.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        deps = deps + [
            "//third_party/catch2:catch2_no_main",
            "//third_party/mpi",
        ],
        **kwargs
    )
    for n in ranks:
        native.sh_test(
            name = "%s_n%d" % (name, n),
            size = size,
            srcs = ["//third_party/mpi:run_under_mpi.sh"],
            args = [str(n), "$(rootpath :%s)" % name],
            data = [
                ":" + name,
                "//tests/support:under_mpirun",
            ],
            tags = tags + ["mpi", "exclusive"],
        )
