// A machine as JSON: what configs/machines holds, `doctor --measure` writes and `plan --machine`
// takes. tools/cli/README.md describes the keys; machine_file.cc has them as one table for both
// ways.
//
// Units   as the keys say: tflops 1e12 FLOP/s, gb_s 1e9 bytes/s, us microseconds, mib 2^20 bytes.
// Errors  Error(kConfig), all of a file's at once, a line each: `where`, the key's path, the value
//         and what is allowed. Unknown and missing keys are errors.
#pragma once

#include <string>
#include <string_view>

#include "runtime/plan/cost/machine.h"

namespace millrace {

// `where`: the file, for errors.
Machine ParseMachine(std::string_view text, std::string_view where);

// ParseMachine(MachineText(machine), ...) is the machine, to the digits written.
std::string MachineText(const Machine& machine);

// What --machine takes: a name that ships, or a file (a value with a '/' or a '.' in it).
Machine NamedMachine(const std::string& value);

}  // namespace millrace
