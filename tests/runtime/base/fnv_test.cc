// FNV-1a against values of its authors' test suite.
#include "runtime/base/fnv.h"

#include <catch2/catch.hpp>

namespace millrace {
namespace {

TEST_CASE("FNV-1a has its authors' values, bytes above 127 included", "[fnv]") {
  CHECK(Fnv1a64("") == 0xcbf29ce484222325u);
  CHECK(Fnv1a64("a") == 0xaf63dc4c8601ec8cu);
  CHECK(Fnv1a64("foobar") == 0x85944171f73967e8u);
  CHECK(Fnv1a64("\xff") == (0xcbf29ce484222325u ^ 0xffu) * 0x100000001b3u);
}

}  // namespace
}  // namespace millrace
