// What a step's tallies say of its routers.
#include "runtime/record/router_figures.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace millrace {
namespace {

TEST_CASE("loads and entropies are those of each block's own experts", "[metrics]") {
  const std::vector<float> values = {3, 1, 5, 3,  // loads, of mean 3
                                     2, 2, 2, 2,  // probabilities: even
                                     8, 4,        // of another block
                                     9, 3};
  const std::vector<RouterFigures> figures = RouterFiguresOf({{"h.1", 4}, {"mtp.1", 2}}, values);
  REQUIRE(figures.size() == 2);
  CHECK(figures[0].block == "h.1");
  CHECK(figures[0].max_load == Approx(5.0 / 3));
  CHECK(figures[0].entropy == Approx(std::log(4)));
  CHECK(figures[0].loads == std::vector<int64_t>{3, 1, 5, 3});
  CHECK(figures[1].block == "mtp.1");
  CHECK(figures[1].max_load == Approx(8.0 / 6));
  CHECK(figures[1].loads == std::vector<int64_t>{8, 4});
  CHECK(figures[1].entropy == Approx(0.75 * std::log(1 / 0.75) + 0.25 * std::log(4)));
}

TEST_CASE("one expert of all has no entropy, and a NaN stays one", "[metrics]") {
  const std::vector<float> one = {6, 0, 0, 6, 0, 0};
  const RouterFigures sole = RouterFiguresOf({{"h.0", 3}}, one).front();
  CHECK(sole.max_load == 3);
  CHECK(sole.entropy == 0);
  std::vector<float> bad = one;
  bad[4] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(RouterFiguresOf({{"h.0", 3}}, bad).front().entropy));
  bad.push_back(1);
  CHECK_THROWS(RouterFiguresOf({{"h.0", 3}}, bad));
}

}  // namespace
}  // namespace millrace
