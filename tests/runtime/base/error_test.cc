#include "runtime/base/error.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace {
namespace {

template <typename F>
Error Caught(F&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kPreempted, "nothing was thrown");
}

TEST_CASE("every error code has its documented exit code and its own name", "[base][error]") {
  using enum ErrorCode;
  const std::vector<std::pair<ErrorCode, int>> documented = {
      {kConfig, 2},     {kData, 3},        {kCheckpoint, 4},
      {kDoesNotFit, 5}, {kOutOfMemory, 5}, {kInvalidArgument, 70},
      {kInternal, 70},  {kTimeout, 71},    {kPeerLost, 72},
      {kComm, 72},      {kNonFinite, 73},  {kIo, 74},
      {kPreempted, 75}, {kDevice, 77}};
  std::vector<std::string> names;
  for (const auto& [code, exit_code] : documented) {
    CAPTURE(Name(code));
    REQUIRE(ExitCode(code) == exit_code);
    names.emplace_back(Name(code));
  }
  std::sort(names.begin(), names.end());
  REQUIRE(std::unique(names.begin(), names.end()) == names.end());
}

TEST_CASE("a failed check is internal and says where, what and why", "[base][error]") {
  const int unit = 3;
  const Error error = Caught([&] { MR_CHECK(unit < 2, "unit {} has no slot", unit); });
  REQUIRE(error.code() == ErrorCode::kInternal);
  const std::string text = error.what();
  REQUIRE(text.find("error_test.cc:") != std::string::npos);
  REQUIRE(text.find("unit 3 has no slot") != std::string::npos);
  REQUIRE(text.find("unit < 2") != std::string::npos);
}

// Compiles with -Werror=return-type only because MR_FAIL does not return.
int SlotOf(int unit) {
  if (unit < 2) return unit;
  MR_FAIL("unit {} has no slot", unit);
}

TEST_CASE("a failure is internal and says where and why", "[base][error]") {
  CHECK(SlotOf(1) == 1);
  const Error error = Caught([] { SlotOf(3); });
  REQUIRE(error.code() == ErrorCode::kInternal);
  const std::string text = error.what();
  REQUIRE(text.find("error_test.cc:") != std::string::npos);
  REQUIRE(text.find(": unit 3 has no slot") == text.size() - 20);
}

TEST_CASE("a failed comparison prints both sides and evaluates them once", "[base][error]") {
  int calls = 0;
  const auto next = [&] { return int64_t{40} + ++calls; };
  const Error error = Caught([&] { MR_CHECK_LE(next(), 7, "bucket {}", "head"); });
  REQUIRE(calls == 1);
  REQUIRE(std::string(error.what()).find("bucket head [failed: next() <= 7, with 41 and 7]") !=
          std::string::npos);
  enum class Colour { kRed, kBlue };
  const Error of_enum = Caught([&] { MR_CHECK_EQ(Colour::kRed, Colour::kBlue, "colours"); });
  REQUIRE(std::string(of_enum.what()).find("with 0 and 1") != std::string::npos);
}

TEST_CASE("a requirement carries its code and exactly its text", "[base][error]") {
  const Error error = Caught([&] {
    MR_REQUIRE(ErrorCode::kData, 2 + 2 == 5, "{}: token {} at {}", "val.bin", 70000, 12);
  });
  REQUIRE(error.code() == ErrorCode::kData);
  REQUIRE(std::string(error.what()) == "val.bin: token 70000 at 12");
}

TEST_CASE("checks that hold throw nothing", "[base][error]") {
  const int64_t n = 5;
  REQUIRE_NOTHROW([&] {
    MR_CHECK(n == 5, "n");
    MR_REQUIRE(ErrorCode::kIo, n > 0, "n");
    MR_CHECK_EQ(n, 5, "n");
    MR_CHECK_NE(n, 6, "n");
    MR_CHECK_LE(n, 5, "n");
    MR_CHECK_LT(n, 6, "n");
    MR_CHECK_GE(n, 5, "n");
    MR_CHECK_GT(n, 4, "n");
  }());
}

}  // namespace
}  // namespace millrace
