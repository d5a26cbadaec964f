#include "runtime/base/id_vector.h"

#include <catch2/catch.hpp>
#include <string>

namespace millrace {
namespace {

struct Unit {
  int32_t value = -1;
  bool operator==(const Unit&) const = default;
};
struct Slot {
  int32_t value = -1;
};

template <class Vector, class Index>
concept IndexedBy = requires(Vector v, Index i) {
  v[i];
};
static_assert(IndexedBy<IdVector<Unit, int>, Unit>);
static_assert(!IndexedBy<IdVector<Unit, int>, Slot>);
static_assert(!IndexedBy<IdVector<Unit, int>, size_t>);

TEST_CASE("an element is found by its id", "[base]") {
  IdVector<Unit, std::string> names;
  const Unit embed = names.push_back("embed"), head = names.push_back("head");
  CHECK(names.size() == 2);
  CHECK(names[embed] == "embed");
  names[head] += "s";
  CHECK(names[Unit{1}] == "heads");
}

TEST_CASE("ids come in order, and only those of elements", "[base]") {
  const IdVector<Unit, int> three(3, 7);
  int32_t next = 0;
  for (const Unit unit : three.ids()) {
    CHECK(unit.value == next++);
    CHECK(three[unit] == 7);
  }
  CHECK(next == 3);
  CHECK(three.Has(Unit{2}));
  CHECK_FALSE(three.Has(Unit{3}));
  CHECK_FALSE(three.Has(Unit{}));
  for (const Unit unit : IdVector<Unit, int>().ids()) FAIL("an id " << unit.value << " of nothing");
}

}  // namespace
}  // namespace millrace
