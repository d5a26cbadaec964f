// The tests' tokenizer behind millrace.h, for as long as it lives.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "tests/runtime/api/c/linked.h"

namespace millrace::test {

class OpenTokenizer {
 public:
  OpenTokenizer() { REQUIRE_CODE(mr_tokenizer_open("tests/runtime/text/testdata", &open_), MR_OK); }
  ~OpenTokenizer() { mr_tokenizer_free(open_); }
  OpenTokenizer(const OpenTokenizer&) = delete;
  OpenTokenizer& operator=(const OpenTokenizer&) = delete;

  operator mr_tokenizer*() const { return open_; }

  std::vector<int32_t> Encode(const std::string& text, int32_t flags = 0) const {
    std::vector<int32_t> ids(text.size() + 8);
    int64_t count = 0;
    REQUIRE_CODE(mr_tokenizer_encode(open_, text.data(), std::ssize(text), flags, ids.data(),
                                     std::ssize(ids), &count),
                 MR_OK);
    ids.resize(static_cast<size_t>(count));
    return ids;
  }
  std::string Decode(const std::vector<int32_t>& ids, int32_t skip_special) const {
    int64_t bytes = 0;
    REQUIRE_CODE(
        mr_tokenizer_decode(open_, ids.data(), std::ssize(ids), skip_special, nullptr, 0, &bytes),
        MR_OK);
    std::string text(static_cast<size_t>(bytes), 0);
    REQUIRE_CODE(mr_tokenizer_decode(open_, ids.data(), std::ssize(ids), skip_special, text.data(),
                                     bytes, &bytes),
                 MR_OK);
    return text;
  }

 private:
  mr_tokenizer* open_ = nullptr;
};

}  // namespace millrace::test
