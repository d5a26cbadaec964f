// Engines made, run for a few steps and destroyed, one after the other, ranks as
// threads of one process: a program to look at with what watches memory, or to run with
// other settings of a library.
//
//   engine_lives [lives] [world] [step|microbatch|off]      30 2 step
//
// A line per life; ends with 1 when a life's bits are not those of the first of its
// kind, with 2 on an error.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

int Lives(int lives, int world, const std::string& graph) {
  std::map<std::string, std::string> first;
  for (int life = 0; life < lives; ++life) {
    const auto family = life % 2 == 0 ? ModelConfig::Family::kGpt2 : ModelConfig::Family::kLlama;
    Base base = MakeBase(family, true, life / 2 % 2 == 0 ? Precision::kFp32 : Precision::kBf16All,
                         world, 3);
    base.trial.config.execution.graph = graph == "off" ? ExecutionConfig::Graph::kOff
                                        : graph == "microbatch"
                                            ? ExecutionConfig::Graph::kMicrobatch
                                            : ExecutionConfig::Graph::kStep;
    const std::string bits = RunTrial(base.trial).Bits();
    const bool same = first.try_emplace(base.name, bits).first->second == bits;
    std::printf("life %d, graph %s, %s: %s\n", life, graph.c_str(), base.name.c_str(),
                same ? "same bits" : "OTHER BITS");
    std::fflush(stdout);
    if (!same) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  const int lives = argc > 1 ? std::atoi(argv[1]) : 30, world = argc > 2 ? std::atoi(argv[2]) : 2;
  try {
    return millrace::test::Lives(lives, world, argc > 3 ? argv[3] : "step");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_lives: %s\n", error.what());
    return 2;
  }
}
