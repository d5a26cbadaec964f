#include "runtime/infer/page_pool.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Pages = std::vector<int32_t>;

TEST_CASE("a page is out once at a time", "[infer]") {
  PagePool pool(5);
  const Pages a = pool.Take(2), b = pool.Take(3);
  CHECK(a == Pages{0, 1});
  CHECK(b == Pages{2, 3, 4});
  CHECK(pool.free() == 0);
  CHECK_THROWS_AS(pool.Take(1), Error);
  pool.GiveBack(a);
  CHECK_THROWS_AS(pool.GiveBack(a), Error);
  CHECK_THROWS_AS(pool.GiveBack(Pages{5}), Error);
  CHECK_THROWS_AS(pool.GiveBack(Pages{-1}), Error);
  CHECK(pool.Take(2) == a);
  CHECK_THROWS_AS(PagePool(-1), Error);
}

TEST_CASE("a page that is shared is free when all who have it have given it back", "[infer]") {
  PagePool pool(4);
  const Pages a = pool.Take(3);
  pool.Share(Pages{0, 1});
  pool.Share(Pages{0});
  pool.GiveBack(a);  // 0 is left twice, 1 once
  CHECK(pool.free() == 2);
  CHECK(pool.Take(2) == Pages{2, 3});
  CHECK_THROWS_AS(pool.Take(1), Error);
  pool.GiveBack(Pages{0, 1});
  CHECK(pool.free() == 1);
  CHECK_THROWS_AS(pool.GiveBack(Pages{1}), Error);
  CHECK_THROWS_WITH(pool.Share(Pages{1}),
                    Catch::Matchers::Contains("page 1 of 4 is shared, and is not out"));
  CHECK_THROWS_AS(pool.Share(Pages{4}), Error);
  pool.GiveBack(Pages{0});
  CHECK(pool.free() == 2);
  CHECK(pool.Take(2) == Pages{0, 1});
}

}  // namespace
}  // namespace millrace
