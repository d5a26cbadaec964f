// Small things that several verbs show or need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/machine.h"

namespace millrace {

// The byte tokenizer: token = byte.
std::vector<int32_t> TokensOfText(std::string_view text);
// Bytes of the tokens; control characters other than newline and tab, and bytes that are not ASCII, as "?".
std::string PrintableText(std::span<const int32_t> tokens);

// What this build runs on: the machine that MFU and predicted times are for.
const Machine& ThisMachine();

}  // namespace millrace
