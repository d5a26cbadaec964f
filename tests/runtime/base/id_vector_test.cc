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

TEST_CASE("a range of ids ends before its last, and is empty where that lies ahead", "[base]") {
  std::string found;
  for (const Unit unit : IdRange<Unit>{{2}, {5}}) found += std::to_string(unit.value);
  CHECK(found == "234");
  CHECK(IdRange<Unit>{{2}, {2}}.empty());
  for (const Unit unit : IdRange<Unit>{{3}, {2}}) FAIL("an id " << unit.value << " of nothing");
  for (const Unit unit : IdRange<Unit>{}) FAIL("an id " << unit.value << " of nothing");
  CHECK(IdsOf<Unit>(4).last.value == 4);
}

TEST_CASE("a range of elements is filled, and vectors compare by element", "[base]") {
  IdVector<Unit, int> numbers(4, 1);
  numbers.Fill({{1}, {3}}, 5);
  int all = 0;
  for (const int number : numbers) all = 10 * all + number;
  CHECK(all == 1551);
  const IdVector<Unit, int> ones(4, 1);
  CHECK(numbers != ones);
  CHECK(ones < numbers);
  numbers.Fill(1);
  CHECK(numbers == ones);
  numbers.resize(5);
  CHECK(numbers.Has({4}));
  CHECK(numbers[{4}] == 0);
}

}  // namespace
}  // namespace millrace
