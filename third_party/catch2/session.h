// Catch2's test session, compiled once. The single header compiles for a quarter of a minute
// wherever it provides the session itself (CATCH_CONFIG_RUNNER), so a test with its own main()
// calls this instead.
#pragma once

namespace millrace {

// Runs the program's test cases as the Catch2 command line says. Returns the number of failures, to
// be the exit code.
int RunCatchSession(int argc, char** argv);

}  // namespace millrace
