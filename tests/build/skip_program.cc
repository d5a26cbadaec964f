// Cases of every kind, for test_results_test.sh.
#include <catch2/catch.hpp>
#include <string>

#include "third_party/catch2/session.h"

TEST_CASE("runs", "[some]") { CHECK(1 + 1 == 2); }

TEST_CASE("runs in part", "[some]") {
  for (const int gpus : {1, 2}) {
    if (gpus == 2)
      millrace::SkipCase("needs 2 GPUs, 1 visible");
    else
      CHECK(gpus == 1);
  }
}

TEST_CASE("is left out", "[some][none]") {
  const int world = GENERATE(2, 2, 4);
  millrace::SkipCase("needs " + std::to_string(world) + " GPUs, 1 visible");
}
