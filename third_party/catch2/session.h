// Catch2's test session, compiled once. The single header compiles for a quarter of a minute
// wherever it provides the session itself (CATCH_CONFIG_RUNNER), so a test with its own main()
// calls this instead.
#pragma once

#include <string>

namespace millrace {

// Runs the program's test cases as the Catch2 command line says. Returns the number of failures, to
// be the exit code.
int RunCatchSession(int argc, char** argv);

// For a test case that this machine cannot run, or not all of it: Catch2 2.13 has no word for that,
// and what returns early would count as passed. Call it on the session's thread, then return.
// After the run RunCatchSession prints a line per case and reason, "skipped case: NAME: REASON",
// and "skipped all" if not one assertion was checked. tools/test counts these lines.
void SkipCase(const std::string& reason);

}  // namespace millrace
