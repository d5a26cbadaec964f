// "throws millrace::Error with this code and a message that contains all of
// these": one readable assertion.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {

inline void RequireError(ErrorCode code, const std::vector<std::string>& parts,
                         const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    CAPTURE(message);
    REQUIRE(std::string(Name(error.code())) == Name(code));
    for (const std::string& part : parts) REQUIRE_THAT(message, Catch::Contains(part));
    return;
  }
  FAIL("no error; expected " << Name(code));
}

}  // namespace millrace
