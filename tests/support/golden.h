// Golden text: what a printable value must look like, kept as a file beside the test.
//
// The files are the planner's own output, read by a person when they change: they notice a change,
// they do not prove that a plan is right. Proofs are elsewhere: the checker and its mutations
// (checker_test), the symbolic oracle of lowering (lower_test), the closed forms (tests/system).
#pragma once

#include <string>

namespace millrace::test {

// Requires `actual` to equal the file (path from the repository's root, a data dependency of the
// test). On a difference the first line that differs is reported. With MILLRACE_UPDATE_GOLDEN=<root
// of the sources> in the environment, the file is written instead and the test fails, so that an
// update is never mistaken for a pass.
void RequireGolden(const std::string& path, const std::string& actual);

}  // namespace millrace::test
