#include "third_party/catch2/session.h"

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

namespace millrace {

int RunCatchSession(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace millrace
