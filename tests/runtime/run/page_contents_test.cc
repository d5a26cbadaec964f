#include "runtime/run/generate/page_contents.h"

#include <catch2/catch.hpp>

namespace millrace {
namespace {

using Ints = std::vector<int32_t>;

TEST_CASE("pages hold a prefix when its tokens were cached there, in order and behind each other") {
  PageContents contents(8, 2);
  const Ints pages = {5, 0, 3}, tokens = {11, 12, 13, 14, 15};
  const auto holds = [&](const Ints& in, const Ints& prefix) {
    return !contents.FirstWithout(in, prefix);
  };
  CHECK(holds(pages, {}));
  CHECK(contents.FirstWithout(pages, Ints{11, 12}) == 5);  // not cached
  contents.Write(pages, 0, std::span(tokens).first(3));    // in pieces of any size
  CHECK(holds(pages, {11, 12}));
  CHECK(contents.FirstWithout(pages, Ints{11, 12, 13, 14}) == 0);  // half of it
  contents.Write(pages, 3, std::span(tokens).subspan(3));
  CHECK(holds(pages, {11, 12, 13, 14}));
  CHECK(contents.FirstWithout(pages, Ints{11, 12, 13, 15}) == 0);
  CHECK(contents.FirstWithout(pages, Ints{12, 11, 13, 14}) == 5);
  CHECK(contents.FirstWithout(Ints{0, 5}, Ints{13, 14, 11, 12}) == 0);  // its place is another

  // The same tokens behind others are not the same keys and values.
  const Ints other = {1, 2};
  contents.Write(other, 0, Ints{11, 10, 13, 14});
  CHECK(contents.FirstWithout(Ints{5, 2}, Ints{11, 12, 13, 14}) == 2);
  contents.Write(other, 0, Ints{11, 12, 13, 14});
  CHECK(holds({5, 2}, {11, 12, 13, 14}));  // now they are

  contents.Write(other, 2, Ints{9, 14});  // a page that is written anew holds what is new
  CHECK(contents.FirstWithout(other, Ints{11, 12, 13, 14}) == 2);
  CHECK(holds(other, {11, 12, 9, 14}));
  contents.Clear();
  CHECK(contents.FirstWithout(pages, Ints{11, 12}) == 5);
}

TEST_CASE("of a page that was gone back into nothing is known until it is written from its begin") {
  PageContents contents(1, 4);
  const Ints page = {0};
  contents.Write(page, 0, Ints{1, 2});
  contents.Write(page, 1, Ints{3, 4});  // four writes; there lies 1 3 4
  CHECK(contents.FirstWithout(page, Ints{1, 2, 3, 4}) == 0);
  contents.Write(page, 3, Ints{5});
  CHECK(contents.FirstWithout(page, Ints{1, 3, 4, 5}) == 0);
  contents.Write(page, 0, Ints{1, 3, 4, 5});
  CHECK(!contents.FirstWithout(page, Ints{1, 3, 4, 5}));
}

TEST_CASE("a token that is not known yet ends what a page held, until all of it is known") {
  PageContents contents(2, 2);
  const Ints page = {0}, other = {1, 0};
  contents.Write(page, 0, Ints{1, 2});
  contents.WillWrite(other, 2);
  CHECK(contents.FirstWithout(page, Ints{1, 2}) == 0);
  contents.Write(other, 0, Ints{3, 4});
  contents.Write(other, 2, Ints{5});
  contents.WillWrite(other, 3);
  CHECK(contents.FirstWithout(other, Ints{3, 4, 5, 6}) == 0);
  contents.Write(other, 3, Ints{6});
  CHECK(!contents.FirstWithout(other, Ints{3, 4, 5, 6}));
  contents.WillWrite(other, 1);  // back in a page
  CHECK(contents.FirstWithout(other, Ints{3, 4}) == 1);
}

}  // namespace
}  // namespace millrace
