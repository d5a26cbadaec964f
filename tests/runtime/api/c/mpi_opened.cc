// A program that knows nothing of MPI, under mpirun: the library finds it, begins it and ends it.
// Exits with 1 and words where a rank, a loss or a second run is not as it must be.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/runtime/api/c/linked.h"

using namespace millrace::test;

namespace {

int Environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

void Require(bool holds, const char* what, const std::string& said) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, said.c_str());
  std::exit(1);
}

double LossOfThreeSteps() {
  const std::string config = TinyConfig();
  mr_run_options options = OptionsOf(config);
  const mr_mpi mpi = Sized<mr_mpi>();
  options.mpi = &mpi;
  const Linked run(options);
  Require(run.created().code == MR_OK, "mr_run_create", run.created().message);
  const Outcome made = Take(mr_init(run));
  Require(made.code == MR_OK, "mr_init", made.message);
  const mr_info info = run.Info();
  Require(info.world == Environment("OMPI_COMM_WORLD_SIZE"), "world", std::to_string(info.world));
  Require(info.rank == Environment("OMPI_COMM_WORLD_RANK"), "rank", std::to_string(info.rank));
  double loss = 0;
  for (int64_t step = 0; step < 3; ++step) {
    const auto [outcome, result] = run.Step(step, info.rank);
    Require(outcome.code == MR_OK, "mr_step", outcome.message);
    loss = result.loss;
  }
  return loss;
}

}  // namespace

int main() {
  const double first = LossOfThreeSteps(), second = LossOfThreeSteps();  // MPI begins once
  Require(first > 0 && first == second, "two runs", std::to_string(second - first));
  return 0;
}
